"""What is recognized and not served, and names that name nothing: one sentence says what it is and what to do."""

from __future__ import annotations

import json
from functools import partial

import pytest

from vlm.build.from_model import build_model, convert_model
from vlm.build.locate import locate
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from vlm.registry.catalogs import match_family
from vlm_app.cli.artifacts.inspect import describe_folder
from vlm_app.cli.main import main

LORA = {"peft_type": "LORA", "base_model_name_or_path": "gpt2", "r": 8, "target_modules": ["c_attn"]}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
W = b"weights"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
# what lies in the folder -> words of the sentence
FOLDERS = {
    "empty": ({}, "is an empty folder; give one that holds a model"),
    "lora": ({"adapter_config.json": LORA, "adapter_model.safetensors": W},
             r"is a PEFT adapter \(LORA\) of gpt2, not a whole model; give --model gpt2 --lora NAME=.*"
             r"or build what vlm convert gpt2 -o OUT --merge-lora .* writes"),
    "ia3 without a base": ({"adapter_config.json": {"peft_type": "IA3", "base_model_name_or_path": None}},
                           r"is a PEFT adapter \(IA3\), not a whole model; give --model MODEL --lora NAME=.* MODEL is"),
    "loha": ({"adapter_config.json": LORA | {"peft_type": "LOHA"}},
             r"is a PEFT adapter \(LOHA\) of gpt2, not a whole model; merge it.*where model is gpt2"),
    "llava's lora": ({"adapter_config.json": LORA, "non_lora_trainables.bin": W, "config.json": LLAMA},
                     "with a projector beside it; merge it .vlm convert gpt2 -o OUT --merge-lora "),
    "prompt tuning": ({"adapter_config.json": LORA | {"peft_type": "PROMPT_TUNING"}},
                      "--prompt-table, --model being gpt2"),
    "prompts of several tasks": ({"adapter_config.json": LORA | {"peft_type": "MULTITASK_PROMPT_TUNING"}},
                                 "rows that are made of several tasks' are not served; give --model gpt2 alone"),
    "prefix tuning": ({"adapter_config.json": LORA | {"peft_type": "PREFIX_TUNING"}}, "give --model gpt2 alone"),
    "gguf": ({"llama-2-7b.Q4_K_M.gguf": W, "config.json": {"model_type": "llama"}}, "llama.cpp's GGUF format"),
    "onnx": ({"model.onnx": W, "config.json": LLAMA, "tokenizer.json": {}}, "an ONNX export for another runtime"),
    "onnx of Optimum": ({"encoder_model.onnx": W, "decoder_model_merged.onnx": W, "config.json": {}}, "ONNX export"),
    "openvino": ({"openvino_model.xml": W, "openvino_model.bin": W, "config.json": LLAMA}, "exported for OpenVINO"),
    "diffusers": ({"model_index.json": {"_class_name": "StableDiffusionPipeline"}}, "a pipeline of diffusers"),
    "ctranslate2": ({"model.bin": W, "shared_vocabulary.json": [], "config.json": {"eos_token": "</s>"}},
                    "CTranslate2"),
    "tensorrt-llm": ({"rank0.engine": W, "config.json": {"pretrained_config": {}, "build_config": {}}}, "TensorRT-LLM"),
    "tensorrt-llm's two engines": ({"encoder/rank0.engine": W, "decoder/rank0.engine": W}, "an engine of TensorRT-LLM"),
    "tensorrt-llm's checkpoints": (
        {f"{side}/config.json": {"architecture": "x", "mapping": {}, "dtype": "float16"} for side in
         ("encoder", "decoder")}, "a checkpoint of TensorRT-LLM; give the Hugging Face folder"),
    "opus-mt of Marian": ({"opus.npz": W, "decoder.yml": "", "source.spm": W}, r"Marian program.*Helsinki-NLP/opus-mt"),
    "nemo 2": ({"context/model.yaml": "", "weights/common.pt": W}, r"NeMo 2 checkpoint.*export_ckpt"),
    "megatron": ({"latest_checkpointed_iteration.txt": "100", "iter_0000100/mp_rank_00/model_optim_rng.pt": W},
                 "distributed training checkpoint"),
    "megatron core": ({".metadata": W, "__0_0.distcp": W, "common.pt": W}, "distributed training checkpoint"),
    "deepspeed": ({"zero_to_fp32.py": "", "global_step5/mp_rank_00_model_states.pt": W, "config.json": LLAMA},
                  r"zero_to_fp32\.py in it"),
    "trainer's output": ({"checkpoint-500/model.safetensors": W, "checkpoint-1500/model.safetensors": W},
                         "checkpoint-500, checkpoint-1500.*give one of them: .*/checkpoint-1500"),
    "under training": ({"optimizer.pt": W, "trainer_state.json": {}, "config.json": LLAMA},
                       "state of a training without"),
    "fairseq without dictionaries": ({"model.pt": W, "bpecodes": ""},
                                     r"holds model\.pt without a config\.json; if it is FairSeq's, put the dict"),
    "no config": ({"pytorch_model.bin": W}, r"holds weights \(pytorch_model\.bin\) without the config\.json"),
    "tokenizer": ({"tokenizer.json": {}, "tokenizer_config.json": {}, "special_tokens_map.json": {}},
                  "a tokenizer alone"),
    "hub cache": ({"blobs/0": W, "refs/main": "0", "snapshots/0/config.json": LLAMA},
                  r"Hub's cache.*give the name instead"),
    "git lfs": ({"config.json": LLAMA, "model.safetensors": LFS},
                r"Git LFS pointers.*\(model\.safetensors\).*git lfs pull"),
    "eetq": ({"config.json": LLAMA, "model.safetensors": W, "quantize_config.json": {"quant_method": "eetq"}},
             r"is quantized \(eetq\)"),
    "quanto": ({"config.json": LLAMA, "model.safetensors": W, "quanto_qmap.json": {"lm_head": {"weights": "qint8"}}},
               r"is quantized \(quanto\), which is not read"),
}  # fmt: skip
HQQ = {"quant_method": "hqq", "bits": 4}
CONFIGS = {
    "hqq": (LLAMA | {"quantization_config": HQQ},
            r"is quantized \(hqq, 4 bits\), which is not read: compressed-tensors, awq, .* or the unquantized model"),
    "fbgemm": (LLAMA | {"quantization_config": {"quant_method": "fbgemm_fp8"}}, r"is quantized \(fbgemm_fp8\)"),
    "torchao in a part": (
        {"model_type": "llava", "text_config": LLAMA | {"quantization_config": {"quant_method": "torchao"}}},
        r"is quantized \(torchao\)"),
    "mlx": (LLAMA | {"quantization": {"group_size": 64, "bits": 4}}, r"is quantized .*4 bits"),
    "bart decoder": ({"model_type": "bart", "architectures": ["BartForCausalLM"], "is_encoder_decoder": False},
                     r"decoder of an encoder-decoder model alone.*BartForConditionalGeneration"),
    "marian decoder": ({"model_type": "marian", "architectures": ["MarianForCausalLM"], "is_encoder_decoder": False},
                       r"decoder of an encoder-decoder model alone.*MarianForConditionalGeneration"),
    "nllb-moe": ({"model_type": "nllb-moe"}, r"is NLLB-MoE, .* give a dense NLLB-200 \(--model facebook/nllb-200-3.3B"),
    "pegasus-x": ({"model_type": "pegasus_x"}, r"is PEGASUS-X, .* give a PEGASUS \(--model google/pegasus-large\)"),
    **{name: ({"model_type": kind, "architectures": [name]}, f"is a {name}, which sorts texts or images into classes")
       for kind, name in (("bart", "BartForSequenceClassification"), ("opt", "OPTForSequenceClassification"),
                          ("llama", "LlamaForSequenceClassification"), ("t5", "T5ForTokenClassification"),
                          ("gpt2", "GPT2ForTokenClassification"), ("bart", "BartForQuestionAnswering"))},
    "no model_type": ({"architectures": ["Thing"]}, "names no model_type"),
    "another model": ({"model_type": "bert"}, "model_type 'bert' is not supported"),
}  # fmt: skip


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(content) if isinstance(content, dict | list) else content
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


@pytest.mark.parametrize(("files", "says"), FOLDERS.values(), ids=FOLDERS)
def test_folder(files, says, tmp_path):
    folder = write(tmp_path / "model", files)
    with pytest.raises(UnsupportedModelError, match=says) as told:
        locate(folder)
    with pytest.raises(UnsupportedModelError) as converted:
        convert_folder(folder, tmp_path / "out")
    sentence = str(told.value)
    assert str(converted.value) == sentence and sentence.startswith(str(folder)) and sentence.endswith(".")
    assert "\n" not in sentence and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("config", "says"), CONFIGS.values(), ids=CONFIGS)
def test_configuration(config, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        match_family(config)
    folder = write(tmp_path / "model", {"config.json": config, "model.safetensors": W})
    with pytest.raises(ConfigError, match=says):
        convert_folder(folder, tmp_path / "out")


def test_a_configuration_without_model_type_is_named_by_its_place(tmp_path):
    folder = write(tmp_path / "model", {"config.json": {"d_model": 4}, "model.safetensors": W})
    verbs = (build_model, convert_model)
    for ask in (describe_folder, *(partial(verb, out=tmp_path / "out") for verb in verbs)):
        with pytest.raises(ConfigError) as error:
            ask(folder)
        assert str(error.value).startswith(f"{folder / 'config.json'} names no model_type: ")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.gguf", "GGUF format"), ("model.onnx", "ONNX export"), ("model.safetensors", "is one file of a model; give"),
        ("config.json", "is one file of a model; give"), ("model.zip", "is an archive; unpack it"),
    ],
)  # fmt: skip
def test_file(name, says, tmp_path, capsys):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SystemExit) as done:
        main(["generate", "a", "--model", str(tmp_path / name)])
    out, err = capsys.readouterr()
    assert (done.value.code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"vlm: {tmp_path / name} is ") and says in err


@pytest.mark.parametrize("part", ["encoder", "decoder/rank0.safetensors", "manifest.json", "processor"])
def test_a_part_of_an_engine_is_named_with_its_whole(part, tmp_path):
    engine = tmp_path / "t5.engine"
    for role in ("encoder", "decoder", "processor"):
        (engine / role).mkdir(parents=True)
        (engine / role / "rank0.safetensors").write_bytes(b"x")
    (engine / "manifest.json").write_text(json.dumps({"format_version": 1, "vlm_version": "0", "roles": {}}))
    with pytest.raises(UnsupportedModelError) as told:
        locate(engine / part)
    assert str(told.value) == f"{engine / part} is a part of the engine {engine}; give that folder."


@pytest.mark.parametrize(("role", "own"), [("encoder", {"num_layers": 2}), ("decoder", {"num_layers": 2})])
def test_a_part_of_a_checkpoint_is_named_with_its_whole(role, own, tmp_path):
    """TensorRT-LLM's examples build each side by itself."""
    checkpoint = tmp_path / "t5.ckpt"
    (checkpoint / role).mkdir(parents=True)
    (checkpoint / role / "config.json").write_text(json.dumps(own))
    (checkpoint / "config.json").write_text(json.dumps({"format_version": 1, "family": "t5", "roles": {}}))
    with pytest.raises(UnsupportedModelError) as told:
        locate(checkpoint / role)
    assert str(told.value) == f"{checkpoint / role} is a part of the checkpoint {checkpoint}; give that folder."


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bart", "architectures": ["BartModel", "BartForMaskedLM", "BartForSequenceClassification"]},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "quantization_config": None},
        {"model_type": "t5", "architectures": ["T5WithLMHeadModel"]},
        {"model_type": "gpt2"},
    ],
)
def test_what_is_served_is_not_refused(config):
    assert match_family(config).name == config["model_type"]


def test_a_training_with_weights_and_other_formats_beside_them_are_no_obstacle(tmp_path):
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    folder = write(tmp_path / "model", {
        "config.json": config, "model.safetensors": W, "optimizer.pt": W, "trainer_state.json": {}, "rng_state.pth": W,
        "onnx/model.onnx": W, "gpt2.gguf": W, "openvino_model.xml": W, "checkpoint-5/model.safetensors": W,
    })  # fmt: skip
    assert locate(folder).kind == "hf"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mini-t55", "mini-t5"), ("GPT2", "gpt2"), ("nougat-base", "facebook/nougat-base"), ("t5-smal", "t5-small"),
        ("llava-1.5-7b-hf", "llava-hf/llava-1.5-7b-hf"),
    ],
)  # fmt: skip
def test_near_names_are_offered(name, near):
    with pytest.raises(ModelNotFoundError, match=rf"does not exist \(is it {near}.*\?\); give a packaged name"):
        locate(name)
