"""A language model and an adapter of a larger model around it -> the folder of that model, before it is adapted.

LLaVA's adapters are trained beside a Vicuna: what makes a LLaVA of it, the configuration and a projector, lies in the
adapter's own folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vlm.artifacts.files import read_json
from vlm.artifacts.hugging_face.hf_folder import WEIGHTS, WHAT, HFFolder
from vlm.artifacts.weights import TensorSource, write_tensors
from vlm.convert.adapters.peft import BESIDE, read_beside
from vlm.errors import CheckpointError
from vlm.registry.catalogs import converter_of, match_family

CONFIG = "config.json"


def completes(source: Path, adapter: Path) -> bool:
    """Says whether an adapter's folder describes another model than the language model that a Hugging Face folder
    holds. Raises ConfigError and CheckpointError for a folder that is none."""
    if not (adapter / BESIDE).exists() or converter_of(adapter) is None:
        return False
    return "image" not in match_family(HFFolder(source).config, source).inputs


def completed_base(source: Path, adapter: Path, out: Path) -> Path:
    """Makes a folder `out` of links to the files of the language model, with the adapter's configuration and the
    tensors beside it, and returns it. Raises CheckpointError."""
    out.mkdir(parents=True)
    index, places = _index(source)
    tensors = read_beside(adapter)
    folders = [path for path in adapter.iterdir() if path.is_dir()]  # a visual tower may lie there
    for path in (*source.iterdir(), *folders):
        name = _beside_index(path.name)
        if path.name not in (CONFIG, index) and not (out / name).exists():
            (out / name).symlink_to(path.resolve())
    added = _write(out / f"beside{Path(next(iter(places.values()))).suffix}", tensors)
    config = read_json(adapter / CONFIG, CheckpointError, WHAT)
    (out / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    weight_map = {"weight_map": {**places, **dict.fromkeys(tensors, added)}}
    (out / index).write_text(json.dumps(weight_map), encoding="utf-8")
    return out


def _index(source: Path) -> tuple[str, dict[str, str]]:
    """Returns the usual name of an index of a folder's weights, whether it is there or not, and the file of each
    tensor."""
    folder = HFFolder(source)
    tensors, name = folder.tensors, folder.weights  # it is all there
    index = next(usual for usual in WEIGHTS if usual.endswith(".bin.index.json" if ".bin" in name else ".index.json"))
    if not name.endswith(".index.json"):
        return index, dict.fromkeys(tensors, _beside_index(name))
    return index, read_json(source / name, CheckpointError, WHAT)["weight_map"]


def _beside_index(name: str) -> str:
    """Returns what a file is called that an index names, which weights of their usual name would be read before."""
    return f"base-{name}" if name in WEIGHTS else name


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes tensors as the other files of the folder are, and returns the file's name."""
    if path.suffix == ".bin":
        torch.save(dict(tensors), path)
    else:
        write_tensors(path, TensorSource.from_tensors(tensors))
    return path.name
