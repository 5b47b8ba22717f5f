"""What a model folder says of the quantization of its weights: in config.json, or in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlm.artifacts.hugging_face.model_files import ModelFiles

READ = ("compressed-tensors", "awq", "gptq", "bitsandbytes", "modelopt")  # as their `quant_method` says
QUANTIZATION_FILES = ("hf_quant_config.json", "quantize_config.json", "recipe.yaml")  # of ModelOpt, AutoGPTQ and
# llm-compressor, whose steps that fold scales of layers' inputs into what comes before are
QUANTO_FILE = "quanto_qmap.json"  # of optimum-quanto, whose settings say nothing in config.json
FOLDING_STEPS = (b"AWQModifier", b"SmoothQuantModifier")
RECIPE_BYTES = 1 << 20  # that are read of a recipe; one has a few hundred


def quantizations(model: ModelFiles) -> dict[str, Mapping[str, Any]]:
    """Returns the settings of a model's quantizations by their methods, those in a file of their own first."""
    found = {}
    if QUANTIZATION_FILES[0] in model.names:
        found["modelopt"] = model.read(QUANTIZATION_FILES[0])
    for settings in _in_config(model.config):
        found.setdefault(_method(settings), settings)
    if QUANTIZATION_FILES[1] in model.names:
        settings = model.read(QUANTIZATION_FILES[1])
        found.setdefault(_named(settings) or "gptq", settings)
    if QUANTO_FILE in model.names:
        found.setdefault("quanto", {})
    return found


def recipe_folds(folder: Path) -> bool:
    """Says whether a folder's recipe has a step that folds scales; it need not have one."""
    try:
        with (folder / QUANTIZATION_FILES[2]).open("rb") as file:
            recipe = file.read(RECIPE_BYTES)
    except OSError:
        return False
    return any(step in recipe for step in FOLDING_STEPS)


def _in_config(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns a configuration's own settings and those of its parts."""
    parts = (config, *(part for part in config.values() if isinstance(part, Mapping)))
    values = (part.get(key) for part in parts for key in ("quantization_config", "quantization"))
    return [value for value in values if isinstance(value, Mapping) and value]


def _method(settings: Mapping[str, Any]) -> str:
    if named := _named(settings):
        return named
    return "bitsandbytes" if any("load_in" in key for key in settings) else "no method named"


def _named(settings: Mapping[str, Any]) -> str:
    """Returns the method that settings name, "" where they name none: GPTQModel calls it `method`, too."""
    return str(settings.get("quant_method") or settings.get("method") or "").lower()
