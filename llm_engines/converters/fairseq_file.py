"""FairSeq's .pt files: which one of a folder, its options and its tensors. Nothing in a file is run."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.hugging_face.hf_folder import check_pickle, check_tensors
from vlm.errors import CheckpointError, VlmWarning, listed

WEIGHTS = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
ENSEMBLE = re.compile(r"(.*\.)?model(\d+)\.pt")  # model1.pt … model4.pt, wmt18.model1.pt …
# modules whose objects a training leaves in a file; nothing that they say of themselves is needed but their values
LEFT_BEHIND = re.compile(r"(fairseq|fairseq_cli|examples|omegaconf|numpy|typing|enum|collections|hydra)\.[\w.]*"
                         r"|dict|list|tuple|set|int|float|str|bool|object")  # fmt: skip
MOST_KINDS = 60


class Inert:
    """Stands for an object of another program's class: keeps its values, does nothing."""

    def __init__(self, *values: Any, **fields: Any):
        self.values = values

    def __setitem__(self, name: Any, value: Any) -> None:
        """Drops a defaultdict's items, of which nothing is needed."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def weights_file(folder: Path) -> Path:
    """Returns the file to convert, of an ensemble the first, with a warning; CheckpointError where it is not clear."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    paths = sorted(folder.glob("*.pt"))
    if len(paths) == 1:
        return paths[0]
    matches = [match for path in paths if (match := ENSEMBLE.fullmatch(path.name))]
    if paths and len(matches) == len(paths):
        first = folder / min(matches, key=lambda match: int(match[2])).string
        warnings.warn(
            f"{folder.name} is an ensemble of {len(paths)} models; {first.name} alone is taken (another: a folder with"
            " that .pt, the dictionaries and the codes).",
            VlmWarning,
            stacklevel=3,
        )
        return first
    names = listed(p.name for p in paths) or "none"
    raise CheckpointError(f"{folder} should hold model.pt, or one .pt file; it holds {names}.")


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the options of the model and its tensors, by torch's restricted unpickler, which builds
    argparse.Namespace and, for what a training left in the file, `Inert` alone."""
    check_pickle(path)
    inert: dict[str, Any] = {}
    for _ in range(MOST_KINDS):
        try:
            with torch.serialization.safe_globals([argparse.Namespace, *((kind, n) for n, kind in inert.items())]):
                content = torch.load(path, map_location="cpu", weights_only=True)
            break
        except pickle.UnpicklingError as error:
            kind = _left_behind(error)
            if kind is None or kind in inert:
                raise CheckpointError(_unsafe(path, error)) from None
            inert_class = type(kind.rpartition(".")[2], (Inert,), {})
            inert |= dict.fromkeys((kind, f"builtins.{kind}", f"__builtin__.{kind}"), inert_class)
        except Exception as error:  # a damaged file may end in any of them
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"{path} is damaged or truncated ({first}); fetch it again.") from None
    else:
        raise CheckpointError(f"{path} holds objects of more than {MOST_KINDS} kinds; it is no FairSeq checkpoint.")
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise CheckpointError(f'{path} is no FairSeq checkpoint: it has no "model".')
    check_tensors(path, {name: value for name, value in content["model"].items() if isinstance(value, torch.Tensor)})
    return _options(path, content), content["model"]


def _left_behind(error: Exception) -> str | None:
    """Returns the name of the class that was refused, where a training leaves such objects in a file."""
    match = re.search(r"GLOBAL ([\w.]+) was not an allowed global", str(error))
    return match[1] if match and LEFT_BEHIND.fullmatch(match[1]) else None


def _unsafe(path: Path, error: Exception) -> str:
    match = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f" of the kind {match[1]}" if match else ""
    return (
        f"{path} is damaged, or holds Python objects{what} that could run code, so it is not loaded; keep its"
        ' "args" and "model" alone and save it again.'
    )


def _options(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of the older `args`, or of the newer `cfg`, whose task names the languages."""
    options: dict[str, Any] = {}
    cfg = plain(content.get("cfg")) or {}
    for part in _parts(cfg):
        options |= _flat(part)
    options |= _flat(plain(content.get("args")) or {})
    if not options:
        raise CheckpointError(f'{path} does not say what it is: it has neither "args" nor "cfg".')
    options["task"] = (cfg.get("task") or {}).get("_name") or options.get("task")
    # the tokenization is of the configuration as a whole: a part's fields of the same names would hide it
    return options | {name: cfg[name] for name in ("tokenizer", "bpe") if cfg.get(name) is not None}


def _parts(cfg: Any) -> Iterator[Mapping[str, Any]]:
    for name in ("task", "model"):
        if isinstance(cfg, Mapping) and isinstance(part := cfg.get(name), Mapping):
            yield part


def plain(value: Any) -> Any:
    """Returns options as dicts, lists and scalars, out of Namespaces and OmegaConf's nodes."""
    if isinstance(value, argparse.Namespace):
        return plain(vars(value))
    if isinstance(value, Inert):
        inside = vars(value)
        content = next((inside[name] for name in ("_content", "_val", "values") if name in inside), None)
        return plain(content[0] if isinstance(content, tuple) and len(content) == 1 else content)
    if isinstance(value, Mapping):
        return {str(name): plain(x) for name, x in value.items()}
    return [plain(x) for x in value] if isinstance(value, list | tuple) else value


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the names of what the newest releases nest: {"encoder": {"layers": 6}} -> {"encoder_layers": 6}"""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        is_nested = isinstance(value, Mapping) and name in ("encoder", "decoder", "quant_noise")
        flat |= {f"{name}_{n}": x for n, x in value.items()} if is_nested else {name: value}
    return flat
