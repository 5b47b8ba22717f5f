"""FasterTransformer's published configurations, by the values of their fields, and repositories of them.

https://github.com/triton-inference-server/fastertransformer_backend: all_models/{t5,t5-encoder,gpt}/fastertransformer.
"""

from __future__ import annotations

from pathlib import Path

COMMON = {
    "runtime_top_k": "UINT32", "runtime_top_p": "FP32", "beam_search_diversity_rate": "FP32", "temperature": "FP32",
    "len_penalty": "FP32", "repetition_penalty": "FP32", "random_seed": "UINT64", "is_return_log_probs": "BOOL",
    "beam_width": "UINT32", "start_id": "UINT32", "end_id": "UINT32", "prompt_learning_task_name_ids": "UINT32",
    "request_prompt_lengths": "UINT32", "top_p_decay": "FP32", "top_p_min": "FP32", "top_p_reset_ids": "UINT32",
}  # fmt: skip
WORDS = {"bad_words_list": ("INT32", "2, -1"), "stop_words_list": ("INT32", "2, -1"),
         "request_prompt_embedding": ("FP16", "-1, -1")}  # fmt: skip
PARAMETERS = {"tensor_para_size": "1", "pipeline_para_size": "1", "enable_custom_all_reduce": "0"}
HEAD = 'name: "fastertransformer" backend: "fastertransformer" max_batch_size: 1024'
INSTANCES = "instance_group [ { count: 1 kind : KIND_CPU } ]"


def _optional(**more: str) -> dict[str, tuple[str, str]]:
    return {name: (kind, "1") for name, kind in (COMMON | more).items()} | WORDS


def _input(name: str, kind: str, dims: str, more: str = "optional: true") -> str:
    shape = "reshape: { shape: [ ] }" if dims == "1" else ""
    return f'input [ {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {shape} {more} }} ]'


def _output(name: str, kind: str, dims: str) -> str:
    return f'output [ {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }} ]'


def _parameters(**values: str) -> str:
    pairs = (PARAMETERS | values).items()
    return "\n".join(f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in pairs)


def t5(**parameters: str) -> str:
    inputs = [_input("input_ids", "UINT32", "-1", ""), _input("sequence_length", "UINT32", "1", "")]
    inputs += [_input("max_output_len", "UINT32", "1", "")]
    inputs += [_input(name, kind, dims) for name, (kind, dims) in _optional(ia3_tasks="INT32").items()]
    outputs = [_output("output_ids", "INT32", "-1, -1"), _output("sequence_length", "INT32", "-1")]
    outputs += [_output("cum_log_probs", "FP32", "-1"), _output("output_log_probs", "FP32", "-1, -1")]
    own = _parameters(**{"data_type": "fp16", "model_type": "T5"} | parameters)
    return "\n".join([HEAD, 'default_model_filename: "t5"', *inputs, *outputs, INSTANCES, own])


def t5_encoder(**parameters: str) -> str:
    inputs = [_input("input_ids", "UINT32", "-1", ""), _input("sequence_length", "UINT32", "1", "")]
    inputs += [_input("is_return_attentions", "BOOL", "1"), _input("ia3_tasks", "INT32", "1")]
    outputs = [_output("output_hidden_state", "FP32", "-1, -1"), _output("output_attentions", "FP32", "-1, -1, -1, -1")]
    own = _parameters(**{"data_type": "fp16", "model_type": "T5-Encoder"} | parameters)
    return "\n".join([HEAD, 'default_model_filename: "t5-encoder"', *inputs, *outputs, INSTANCES, own])


def gpt(**parameters: str) -> str:
    batching = """model_transaction_policy { decoupled: False } dynamic_batching { max_queue_delay_microseconds: 50000 }
        batch_input [ { kind: BATCH_ITEM_SHAPE target_name: "input_ids_item_shape" data_type: TYPE_INT32
                        source_input: "input_ids" } ]"""
    inputs = [_input("input_ids", "UINT32", "-1", "allow_ragged_batch: true")]
    inputs += [_input("input_lengths", "UINT32", "1", ""), _input("request_output_len", "UINT32", "-1", "")]
    more = _optional(is_return_context_embeddings="BOOL", request_prompt_type="UINT32")
    inputs += [_input(name, kind, dims) for name, (kind, dims) in more.items()]
    outputs = [_output("output_ids", "UINT32", "-1, -1"), _output("sequence_length", "UINT32", "-1")]
    outputs += [_output("response_input_lengths", "INT32", "-1"), _output("cum_log_probs", "FP32", "-1")]
    outputs += [_output("output_log_probs", "FP32", "-1, -1"), _output("context_embeddings", "FP32", "-1, -1")]
    own = _parameters(**{"data_type": "fp16", "model_type": "GPT", "int8_mode": "0"} | parameters)
    return "\n".join([HEAD, 'default_model_filename: "gpt3_345M"', batching, *inputs, *outputs, INSTANCES, own])


def repository(root: Path, **configs: str) -> Path:
    """Models by their names, each with an empty version, as FasterTransformer's files name theirs elsewhere."""
    for name, text in configs.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return root
