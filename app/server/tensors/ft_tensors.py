"""Tensors of FasterTransformer's and TensorRT-LLM's backends that a model here does not have: taken at their neutral
values, else refused by name.

https://github.com/triton-inference-server/tensorrtllm_backend: docs/model_config.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from vlm.errors import InputError

Value = TypeVar("Value")  # an array, or a parameter's value for all rows

NONE: tuple[int, ...] = ()
DRAFTS = "prompt_lookup_num_tokens says how many tokens are drafted"
ADAPTERS = "adapters are loaded with the model, by --lora; lora_task_uids says which one a row has"
BIASES = "logits have no biases in this protocol; OpenAI's has logit_bias"
ROWS = "rows before the ids are request_prompt_embedding; tuned prompts are --prompt-table of the server"
LOGITS = ((0,), "logits are not given; is_return_log_probs gives log-probabilities")
# name -> (neutral values; None: any, what to do instead)
INPUTS: dict[str, tuple[tuple[int, ...] | None, str]] = {
    "is_return_context_embeddings": ((0,), "context embeddings are not given; leave it out, or false"),
    "request_prompt_type": ((0, 1), "rows of request_prompt_embedding stand before the ids: 1, a soft prompt"),
    "session_len": (NONE, "no session is kept; send all of a conversation in each request"),
    "memory_len": (NONE, "no session is kept; send all of a conversation in each request"),
    "pad_id": (None, "sequence_length says where an output ends"),
    "return_context_logits": LOGITS,
    "return_generation_logits": LOGITS,
    "exclude_input_in_output": ((1,), "text_output never has the input; leave it out, or true"),
    "num_return_sequences": ((1,), "beam_width says how many outputs there are"),
    "return_perf_metrics": ((0,), "/v2/models/stats and /metrics have what is measured; leave it out, or false"),
    "Streaming": (None, "what its client says beside the tensor `streaming`"),
    "num_draft_tokens": ((0,), DRAFTS),
    "use_draft_logits": ((0,), DRAFTS),
    **dict.fromkeys(("draft_input_ids", "draft_logits", "draft_acceptance_threshold"), (NONE, DRAFTS)),
    **dict.fromkeys(("lora_weights", "lora_config"), (NONE, ADAPTERS)),
    **dict.fromkeys(("embedding_bias", "embedding_bias_words", "embedding_bias_weights"), (NONE, BIASES)),
    **dict.fromkeys(("prompt_embedding_table", "prompt_vocab_size", "prompt_table_extra_ids"), (NONE, ROWS)),
}
OUTPUTS = {"context_embeddings": "context embeddings are not given; /v1/embeddings and T5-Encoder give an encoder's"}
BATCH_INPUTS = ("input_ids_item_shape", "request_prompt_embedding_item_shape")  # which its backend gives itself


def without_neutral(inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the tensors, or parameters, without those at neutral values. Raises InputError for one that asks for
    something."""
    for name, (neutral, remedy) in INPUTS.items():
        if name in inputs and neutral is not None and not np.isin(np.asarray(inputs[name]), neutral).all():
            raise InputError(f"input {name} is not taken here: {remedy}.")
    return {name: value for name, value in inputs.items() if name not in INPUTS}
