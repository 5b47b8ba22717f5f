"""Model folders, files and configurations that are recognized and not served: how to know each, and what to do.

A catalog adds rows of its own for the models it knows: `UNSUPPORTED`, a tuple of `Unsupported`.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm.artifacts.files import open_regular, read_small
from vlm.artifacts.hugging_face.model_files import WEIGHTS, ModelFiles
from vlm.artifacts.hugging_face.peft_folder import TUNED_PROMPTS
from vlm.artifacts.hugging_face.quantization_files import READ, quantizations
from vlm.artifacts.native.checkpoint import is_checkpoint
from vlm.artifacts.native.engine_dir import is_engine
from vlm.errors import UnsupportedModelError, cut, listed


@dataclass(frozen=True)
class Unsupported:
    """One kind of model that is not served."""

    matches: Callable[[ModelFiles], bool]
    says: Callable[[ModelFiles], str]  # what it is and what to do next: follows its name, without the full stop
    by_config: bool = False  # known by its configuration alone: not said of what another catalog's family takes


def check_supported(model: ModelFiles, rows: Iterable[Unsupported]) -> None:
    """Raises UnsupportedModelError with the sentence of the first row that matches."""
    for row in rows:
        if row.matches(model):
            raise UnsupportedModelError(f"{model.name} {row.says(model)}.")


TOKENIZER = (r"tokenizer.*", r"spiece\.model", r"sentencepiece.*\.model", r"vocab\.(json|txt)")
POINTER = b"version https://git-lfs.github.com/spec/"
HEAD = re.compile(r"\w+For(Sequence|Token|Image|Video|Audio|AudioFrame)Classification|\w+ForQuestionAnswering"
                  r"|\w+ForMultipleChoice|\w+ForNextSentencePrediction")  # fmt: skip
LOADED = ("LORA", "IA3")  # those that models are run with
NOT_SERVED = {  # what adapters of these kinds hold
    "PREFIX_TUNING": "keys and values of its own",
    "MULTITASK_PROMPT_TUNING": "rows that are made of several tasks'",
}


def _pointers(model: ModelFiles) -> list[str]:
    """Returns the names of the files that stand for others in a clone without Git LFS."""
    names = sorted(n for n in model.names if n.endswith((".safetensors", ".bin", ".model", ".pt", "tokenizer.json")))
    return [name for name in names if model.path and _begins(model.path / name, POINTER)]


def _begins(path: Path, head: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(head)) == head
    except OSError:
        return False


def describe_adapter(model: ModelFiles) -> str:
    """Returns what a folder with an adapter_config.json is, in words."""
    config = model.read("adapter_config.json")
    kind, base = config.get("peft_type"), _base(config)
    return f"is a PEFT adapter{f' ({cut(kind)})' if kind else ''}{f' of {base}' if base else ''}, not a whole model"


def _base(config: Mapping[str, Any]) -> str:
    """Returns the name of the model that an adapter was made for; "" where its configuration says none."""
    return cut(config.get("base_model_name_or_path") or "")


def _adapter(model: ModelFiles) -> str:
    config = model.read("adapter_config.json")
    kind, base = config.get("peft_type"), _base(config)
    what = describe_adapter(model)
    if kind in TUNED_PROMPTS:
        return f"{what}; give {model.name} with --prompt-table, --model being {base or 'its base model'}"
    if kind in NOT_SERVED:
        return f"{what}, and {NOT_SERVED[kind]} are not served; give --model {base or 'its base model'} alone"
    if kind in LOADED:
        own = base or "MODEL"
        return (
            f"{what}; give --model {own} --lora NAME={model.name}, or build what vlm convert {own} -o OUT"
            f" --merge-lora {model.name} writes{'' if base else ', where MODEL is the one that it was trained on'}"
        )
    return (
        f"{what}; merge it in Python with PeftModel.from_pretrained(model, {model.name!r}).merge_and_unload() and"
        f" save_pretrained, where model is {base or 'its base model'}, and give the folder that this writes"
    )


def _unread(model: ModelFiles) -> list[str]:
    """Returns the quantizations of a model that are not read."""
    return [method for method in quantizations(model) if method not in READ]


def _quantized(model: ModelFiles) -> str:
    method = _unread(model)[0]
    bits = quantizations(model)[method].get("bits")
    return (
        f"is quantized ({cut(method)}{f', {cut(bits)} bits' if bits else ''}), which is not read: {listed(READ)} are;"
        " give one of these or the unquantized model that it was made from"
    )


def _converted_from(model: ModelFiles) -> str:
    """Returns the name that FasterTransformer's converter wrote down, in brackets; "" where there is none."""
    reader = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        reader.read_string(read_small(model.path / "config.ini").decode("utf-8") if model.path else "")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return ""
    names = (reader[section].get(key) for section in reader.sections() for key in ("_name_or_path", "model_name"))
    name = next((name for name in names if name and name.strip()), None)
    return f" ({cut(name)})" if name else ""


def _training(model: ModelFiles) -> str:
    steps = sorted((n for n in model.names if re.fullmatch(r"checkpoint-\d+", n)), key=lambda n: int(n[11:]))
    return f"holds the checkpoints of a training ({listed(steps)}); give one of them: {model.name}/{steps[-1]}"


def _cached(model: ModelFiles) -> str:
    owner = model.path.name.removeprefix("models--").replace("--", "/") if model.path else ""
    return f"is a folder of the Hub's cache, not a model's; give the name instead: {owner}"


def _no_config(model: ModelFiles) -> str:
    files = listed(sorted(n for n in model.names if any(re.fullmatch(p, n) for p in WEIGHTS)), 3)
    return (
        f"holds weights ({files}) without the config.json that says of which model they are; put its config.json and"
        " tokenizer files beside them, from the model that they were trained from"
    )


def _whole(model: ModelFiles) -> Path | None:
    """Returns the engine or checkpoint of ours that a folder or file is a part of; None: it is none."""
    if model.path is None or model.has_weights:
        return None
    return next((each for each in model.path.absolute().parents[:2] if is_engine(each) or is_checkpoint(each)), None)


def _part(model: ModelFiles) -> str:
    folder = _whole(model)
    what = "checkpoint" if folder and is_checkpoint(folder) else "engine"
    return f"is a part of the {what} {folder}; give that folder"


def _tensorrt_llm(model: ModelFiles) -> str | None:
    """Returns what of TensorRT-LLM's a folder is, which has one of an encoder and one of a decoder in it or none; None:
    it is nothing of it."""
    inside = [model.path / name for name in ("encoder", "decoder") if model.path and name in model.names]
    for each in (model, *map(ModelFiles.from_path, inside)):
        if each.holds(r"rank\d+\.engine") or {"pretrained_config", "build_config"} <= each.config.keys():
            return "an engine"
        if {"architecture", "mapping", "dtype"} <= each.config.keys() and "model_type" not in each.config:
            return "a checkpoint"
    return None


def _beside(model: ModelFiles) -> str:
    folder = model.path.parent if model.path else Path()
    whole = any(folder.glob("config.json")) or any(folder.glob("dict.*.txt"))
    return (
        f"is one file of a model; give {f'its folder: {folder}' if whole else 'a folder with config.json and weights'}"
    )


# the first that matches counts: a file's kind, then a folder's files, then its config.json
ROWS = (
    Unsupported(lambda m: _whole(m) is not None, _part),
    Unsupported(lambda m: m.suffix == ".gguf" or (m.holds(r".+\.gguf") and not m.has_weights),
                lambda m: "is in llama.cpp's GGUF format, which is not read; give the Hugging Face folder or Hub id"
                          " that it was made from"),
    Unsupported(lambda m: m.suffix == ".onnx" or (m.holds(r".+\.onnx", "onnx") and not m.has_weights),
                lambda m: "is an ONNX export for another runtime; give the Hugging Face folder or Hub id that it was"
                          " made from (vlm build --backend onnxruntime makes an export of its own)"),
    Unsupported(lambda m: m.suffix in (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".json", ".model", ".h5"),
                _beside),
    Unsupported(lambda m: m.suffix in (".zip", ".7z", ".rar"),
                lambda m: "is an archive; unpack it and give the folder in it that holds config.json"),
    Unsupported(lambda m: m.path is not None and m.path.is_dir() and not m.names,
                lambda m: "is an empty folder; give one that holds a model (config.json and weights)"),
    Unsupported(lambda m: {"blobs", "snapshots"} <= m.names, _cached),
    Unsupported(lambda m: "adapter_config.json" in m.names, _adapter),
    Unsupported(lambda m: "model_index.json" in m.names,
                lambda m: "is a pipeline of diffusers, which draws images; vlm reads images and texts: give a model"
                          " that writes text, or run this one with diffusers"),
    Unsupported(lambda m: bool(_pointers(m)),
                lambda m: f"holds Git LFS pointers instead of files ({listed(_pointers(m), 3)}); run `git lfs pull` in"
                          " it"),
    Unsupported(lambda m: m.holds(r"openvino_.*model\.(xml|bin)") and not m.has_weights,
                lambda m: "was exported for OpenVINO; give the Hugging Face folder or Hub id that it was made from"),
    Unsupported(lambda m: "model.bin" in m.names and m.holds(r".*vocabulary\.(json|txt)"),
                lambda m: "is a model of CTranslate2; give the Hugging Face folder or Hub id that it was made from"),
    Unsupported(lambda m: _tensorrt_llm(m) is not None,
                lambda m: f"is {_tensorrt_llm(m)} of TensorRT-LLM; give the Hugging Face folder or Hub id that it was"
                          " made from"),
    Unsupported(lambda m: m.holds(r".+\.npz") and m.holds(r"decoder\.yml|.+\.vocab\.yml"),
                lambda m: "is a model of the Marian program, as OPUS-MT publishes it; give its Hugging Face conversion"
                          " (Helsinki-NLP/opus-mt-SOURCE-TARGET)"),
    Unsupported(lambda m: "config.ini" in m.names and m.holds(r"model\..+\.bin") and "config.json" not in m.names,
                lambda m: "was written by FasterTransformer's converter (config.ini, a .bin file a weight), which is"
                          f" not read; give the model that it was converted from{_converted_from(m)}"),
    Unsupported(lambda m: {"context", "weights"} <= m.names and "config.json" not in m.names,
                lambda m: "is a NeMo 2 checkpoint; export it with nemo.collections.llm.export_ckpt(path, target=\"hf\")"
                          " and give the folder that this writes"),
    Unsupported(lambda m: m.holds("latest_checkpointed_iteration.txt", r"iter_\d+", r".+\.distcp", r"mp_rank_\d+.*")
                and not m.has_weights and "model_config.yaml" not in m.names,
                lambda m: "is a distributed training checkpoint (Megatron or torch.distributed); export it to a"
                          " Hugging Face folder with the program that trained it and give that"),
    Unsupported(lambda m: m.holds("zero_to_fp32.py", r"global_step\d+") and not m.has_weights,
                lambda m: "is a DeepSpeed training checkpoint without whole weights; run the zero_to_fp32.py in it"
                          " (python zero_to_fp32.py . . --safe_serialization) and give the folder again"),
    Unsupported(lambda m: not m.has_weights and m.holds(r"checkpoint-\d+"), _training),
    Unsupported(lambda m: m.has_weights and "config.json" not in m.names, _no_config),
    Unsupported(lambda m: m.holds("optimizer.pt", r"trainer_state\.json", r"scheduler\.pt") and not m.has_weights,
                lambda m: "holds the state of a training without weights; give the folder that its save_model or"
                          " save_pretrained wrote"),
    Unsupported(lambda m: m.holds(*TOKENIZER) and not m.has_weights and "config.json" not in m.names
                and not m.holds(r".+\.(pt|ckpt|nemo|yaml)"),
                lambda m: "holds a tokenizer alone, no config.json and no weights; give the folder of the whole model"),
    Unsupported(lambda m: bool(_unread(m)), _quantized),
    Unsupported(lambda m: bool(m.architectures) and all(HEAD.fullmatch(name) for name in m.architectures),
                lambda m: f"is a {cut(m.architectures[0])}, which sorts texts or images into classes and writes none;"
                          " give a model that generates, or run this one with transformers"),
)  # fmt: skip
