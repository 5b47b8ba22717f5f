"""VILA's folders, read as they are published: no repository of VILA's is needed, and nothing in them is run.

VILA-1.5 keeps its parts in folders of their own (`llm/`, `vision_tower/`, `mm_projector/`), with a config.json beside
them. VILA-1 is one checkpoint of LLaVA's first form (`model.layers…`, `model.mm_projector…`), whose tower lies in it
too (`model.vision_tower.vision_tower…`) or in a folder `vision_tower/` that one puts there.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vlm.checkpoint import Checkpoint, Progress, write_checkpoint
from vlm.compile.builder import convert_roles, role_configs
from vlm.compile.hf_folder import HFFolder
from vlm.compile.tokenizer_files import make_tokenizer
from vlm.errors import CheckpointError, ConfigError, listed
from vlm.registry import family
from vlm.weights import Joined

INNER_TOWER = "model.vision_tower.vision_tower."
# settings that change the maths and that nothing here honours, and the values that ask for nothing
UNSUPPORTED = {
    "s2": (False, None), "dynamic_s2": (False, None), "mm_use_im_start_end": (False, None),
    "mm_use_im_patch_token": (False, None), "vision_resolution": (-1, None),
}  # fmt: skip


def convert(folder: Path, out: Path, *, progress: Progress | None = None) -> Checkpoint:
    """A VILA folder -> our checkpoint at `out`, written whole or not at all.

    Raises CheckpointError for a part that is missing or does not fit, ConfigError that names every setting which cannot
    be honoured.
    """
    root = HFFolder(folder)
    apart = (folder / "llm").is_dir()
    parts = {name: HFFolder(folder / name) for name in ("llm", "vision_tower", "mm_projector")}
    language, tower = parts["llm"] if apart else root, parts["vision_tower"]
    if apart and (absent := [name for name, part in parts.items() if not part.path.is_dir()]):
        raise CheckpointError(f"{folder} lacks its folder {listed(absent)}; fetch it again.")
    config = _config(root.config, language, tower, parts["mm_projector"] if apart else None)
    spec = family("vila")
    tensors = Joined({f"{name}.": part.tensors for name, part in parts.items()}) if apart else _flat(root, tower)
    roles = convert_roles(tensors, spec, role_configs(spec, config), folder)
    with _processor(language, tower, root.config) as files:
        return write_checkpoint(
            Path(out),
            family="vila",
            roles=roles,
            generation=language.generation,
            source=folder.resolve().name,
            processor_files=files,
            progress=progress,
        )


def _config(root: dict[str, Any], language: HFFolder, tower: HFFolder, projector: HFFolder | None) -> dict[str, Any]:
    """What the family's roles take, under the names of their modules."""
    wrong = [f"{name} is {root[name]!r}" for name, neutral in UNSUPPORTED.items() if root.get(name) not in neutral]
    if (ratio := root.get("image_aspect_ratio", "resize")) not in ("resize", "pad", None):
        wrong.append(f"image_aspect_ratio is {ratio!r}")
    if wrong:
        raise ConfigError(f"this VILA cannot be run exactly: {'; '.join(wrong)}.")
    # the tower of a flat checkpoint says what it is only if its folder is there
    vision = tower.config if tower.path.is_dir() else root.get("vision_tower_cfg")
    if not isinstance(vision, dict):
        raise CheckpointError(
            f"{tower.path} is missing: this checkpoint names its vision tower ({root.get('mm_vision_tower')!r}) and"
            " does not describe it; put that model's folder there."
        )
    vision = vision.get("vision_config") or vision
    said = {name: root[name] for name in ("mm_vision_select_layer", "mm_vision_select_feature") if name in root}
    kind = (projector.config if projector else root).get("mm_projector_type", "linear")
    llm = {k: v for k, v in language.config.items() if projector is not None or _of_language(k)}
    llm["model_type"] = "mistral" if "mistral" in str(llm.get("model_type")) else "llama"
    width = llm.get("hidden_size", 4096)
    visual = {"vision_tower": vision, "mm_projector_type": kind, "hidden_size": width, **said}
    return {"model_type": "vila", "visual": visual, "decoder": llm}


def _of_language(field: str) -> bool:
    """Is it LLaMA's own, in a configuration that holds everything?"""
    others = (
        "mm_",
        "tune_",
        "vision_",
        "image_",
        "s2",
        "freeze_",
        "use_mm",
        "unfreeze",
        "num_video",
        "fps",
        "drop_path",
    )
    return not field.startswith(
        (*others, "tokenizer_", "resume_path", "model_dtype", "interpolate_mode", "hidden_size_")
    )


def _flat(root: HFFolder, tower: HFFolder) -> Mapping[str, Tensor]:
    """A flat checkpoint's tensors under the names of one in parts."""
    inside = {name: x for name, x in root.tensors.items() if name.startswith(INNER_TOWER)}
    projector = {name: x for name, x in root.tensors.items() if name.startswith("model.mm_projector.")}
    language = {name: x for name, x in root.tensors.items() if name not in inside and name not in projector}
    found: dict[str, Mapping[str, Tensor]] = {
        "llm.": language,
        "mm_projector.layers.": {name.removeprefix("model.mm_projector."): x for name, x in projector.items()},
    }
    if inside:
        found["vision_tower."] = {name.removeprefix(INNER_TOWER): x for name, x in inside.items()}
    elif tower.path.is_dir():
        # a whole CLIP holds its text side too
        held = tower.tensors
        found["vision_tower."] = {n: held[n] for n in held if n.startswith("vision_model.")} or held
    return Joined(found)


@contextlib.contextmanager
def _processor(language: HFFolder, tower: HFFolder, root: dict[str, Any]) -> Iterator[list[Path]]:
    """The tokenizer's files and the tower's image processor, changed to what VILA does with a picture's shape."""
    files = [path for path in language.processor_files if path.name != "preprocessor_config.json"]
    with tempfile.TemporaryDirectory() as made:
        if not any(path.name == "tokenizer.json" for path in files) and (text := make_tokenizer(language.path)):
            files.append(_written(Path(made) / "tokenizer.json", text))
        for folder in (tower, language):
            if (path := folder.path / "preprocessor_config.json").is_file():
                settings = _shaped(json.loads(path.read_text(encoding="utf-8")), root.get("image_aspect_ratio"))
                files.append(_written(Path(made) / path.name, json.dumps(settings)))
                break
        yield files


def _shaped(settings: dict[str, Any], ratio: str | None) -> dict[str, Any]:
    """`resize`: a picture is pressed into the square; `pad`: it gets a border of the mean colour before."""
    size = settings.get("crop_size") or settings.get("size") or {}
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
    settings = settings | {"size": {"height": side, "width": side}, "do_center_crop": False}
    return settings | ({"pad_to_square": True} if ratio == "pad" else {})


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
