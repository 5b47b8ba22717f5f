"""LLaVA's folders in the form of its own repository (liuhaotian/llava-v1.5-*), and VILA-1's, which have it too.

One checkpoint holds the language model and the projector (`model.layers…`, `model.mm_projector…`). The tower lies in
it too (`model.vision_tower.vision_tower…`), or is a model of its own that config.json names (`mm_vision_tower`): then
it is looked for in a folder of that name or `vision_tower/`, and on the Hub. No repository of LLaVA's is needed, and
nothing in a folder is run.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from visual_engines.families.vicuna import vicuna
from vlm.artifacts.files import read_json
from vlm.artifacts.hugging_face import hub
from vlm.artifacts.hugging_face.chat_template import read_template
from vlm.artifacts.hugging_face.hf_folder import WHAT, HFFolder
from vlm.artifacts.native.checkpoint import Check, Checkpoint, write_checkpoint
from vlm.artifacts.progress import Progress
from vlm.artifacts.weights import MergedView, PrefixView
from vlm.convert.roles import convert_roles, role_configs
from vlm.convert.tokenizer_files import make_tokenizer
from vlm.errors import CheckpointError, ConfigError, ModelNotFoundError, shown
from vlm.registry.catalogs import check_files, family

INNER_TOWER = "model.vision_tower.vision_tower."
PROJECTOR = "model.mm_projector."
# settings that change the maths and that nothing here honours, and the values that ask for nothing
UNSUPPORTED = {
    "s2": (False, None), "dynamic_s2": (False, None), "mm_use_im_start_end": (False, None),
    "mm_use_im_patch_token": (False, None), "vision_resolution": (-1, None), "mm_resampler_type": (None,),
    "image_aspect_ratio": ("resize", "pad", "square", None),
}  # fmt: skip
_LARGE = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "patch_size": 14,
}  # fmt: skip
DECODERS = {"llava": "llama", "llava_llama": "llama", "llava_mistral": "mistral"}  # of a checkpoint in one file
# towers that a checkpoint may hold without a description
KNOWN_TOWERS = {
    "openai/clip-vit-large-patch14": _LARGE | {"image_size": 224},
    "openai/clip-vit-large-patch14-336": _LARGE | {"image_size": 336},
}
# the conversation that LLaVA-1.5 was trained in
TEMPLATE = vicuna(
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed,"
    " and polite answers to the human's questions. "
)


@dataclass(frozen=True)
class Tower:
    """Holds a checkpoint's vision tower."""

    config: dict[str, Any]
    tensors: Mapping[str, Tensor]
    folder: Path | None  # that has its image processor


def convert(folder: Path, out: Path, *, progress: Progress | None = None, check: Check | None = None) -> Checkpoint:
    """Converts a LLaVA or VILA-1 folder to our checkpoint at `out`, written whole or not at all. `check`: see
    write_checkpoint.

    Raises CheckpointError for a tower that cannot be had and for weights that do not fit, ConfigError that names every
    setting which cannot be honoured.
    """
    root = HFFolder(folder)
    check_settings(root.config)
    tower = find_tower(root)
    spec = family("llava" if root.config.get("mm_projector_type") == "mlp2x_gelu" else "vila")
    config, tensors = (_as_llava if spec.name == "llava" else _as_vila)(root, tower)
    roles = convert_roles(tensors, spec, role_configs(spec, config), folder)
    template = TEMPLATE if spec.name == "llava" else None
    with processor_files(
        root, tower.folder, root.config, image_size=tower.config.get("image_size", 224), template=template
    ) as files:
        return write_checkpoint(
            Path(out),
            family=spec.name,
            roles={name: role.weights for name, role in roles.items()},
            generation=root.generation,
            source=folder.resolve().name,
            processor_files=files,
            check=check,
            progress=progress,
        )


def check_settings(config: dict[str, Any]) -> None:
    """Raises ConfigError that names what is set and not done here."""
    errors = [
        f"{name} is {shown(config[name])}" for name, neutral in UNSUPPORTED.items() if config.get(name) not in neutral
    ]
    if errors:
        raise ConfigError(f"this LLaVA or VILA configuration cannot be run exactly: {'; '.join(errors)}.")


def find_tower(root: HFFolder) -> Tower:
    """Finds the tower inside the checkpoint, in a folder, or on the Hub (or its local cache)."""
    name = root.config.get("mm_vision_tower") or root.config.get("vision_tower")
    inside = _part(root, INNER_TOWER)
    beside = _beside(root.path, name)
    if inside:
        config = vision_config(HFFolder(beside).config) if beside else root.config.get("vision_tower_cfg")
        if config := config or KNOWN_TOWERS.get(str(name)):
            return Tower(config, inside, beside)
    folder = beside or _download(root.path, name)
    other = HFFolder(folder)
    return Tower(vision_config(other.config), inside or _visual_tensors(other), folder)


def vision_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a tower's own configuration, or that part of a whole CLIP's, whose older form says it twice."""
    part = config.get("vision_config")
    return config if not isinstance(part, dict) else part | (config.get("vision_config_dict") or {})


def _beside(folder: Path, name: Any) -> Path | None:
    last = str(name or "").rstrip("/").rpartition("/")[2] or "vision_tower"
    places = [folder / "vision_tower", folder / last, folder.resolve().parent / last, Path(str(name or last))]
    return next((place for place in places if (place / "config.json").is_file()), None)


def _download(folder: Path, name: Any) -> Path:
    reason = f"its config.json names {shown(name)}, which is no model of the Hub"
    if isinstance(name, str) and hub.is_repo_id(name):
        try:
            return hub.download(name, check=check_files)
        except ModelNotFoundError as error:
            reason = str(error).partition(";")[0].rstrip(".")
    raise CheckpointError(
        f"{folder} lacks its vision tower: {reason}; put that model's folder (config.json, weights,"
        f" preprocessor_config.json) there as {folder / 'vision_tower'}."
    )


def _visual_tensors(tower: HFFolder) -> Mapping[str, Tensor]:
    """Returns the visual ones of a tower's tensors: a whole CLIP holds its text side too."""
    visual = [name for name in tower.tensors if name.startswith("vision_model.")]
    return PrefixView(tower.tensors, visual, "") if visual else tower.tensors


def _part(root: HFFolder, prefix: str) -> Mapping[str, Tensor]:
    return PrefixView(root.tensors, [name for name in root.tensors if name.startswith(prefix)], prefix)


def _language(root: HFFolder) -> Mapping[str, Tensor]:
    apart = (INNER_TOWER, PROJECTOR)
    return PrefixView(root.tensors, [name for name in root.tensors if not name.startswith(apart)], "")


def _decoder(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a language model's configuration under the model_type that it has in Hugging Face's."""
    kind = config.get("model_type", "llama")
    return config | {"model_type": DECODERS.get(str(kind), kind)}


def _as_llava(root: HFFolder, tower: Tower) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Returns what the LLaVA family takes: a configuration and tensors as Hugging Face has them."""
    rows = root.config.get("mm_vision_select_feature", "patch")
    if rows not in ("patch", "cls_patch"):
        raise ConfigError(f"mm_vision_select_feature is {shown(rows)}; supported are patch, cls_patch.")
    config = {
        "model_type": "llava",
        "vision_config": tower.config,
        "vision_feature_layer": root.config.get("mm_vision_select_layer", -2),
        "vision_feature_select_strategy": "default" if rows == "patch" else "full",
        "text_config": _decoder(root.config),
    }
    layers = {"0": "linear_1", "2": "linear_2"}
    pairs = ((name.partition("."), tensor) for name, tensor in _part(root, PROJECTOR).items())
    projector = {f"{layers.get(layer, layer)}.{kind}": tensor for (layer, _, kind), tensor in pairs}
    parts = {"vision_tower.": tower.tensors, "multi_modal_projector.": projector, "language_model.": _language(root)}
    return config, MergedView(parts)


def _as_vila(root: HFFolder, tower: Tower) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Returns what the VILA family takes, under the names of its modules."""
    config = vila_config(root.config, tower.config, root.config.get("mm_projector_type", "linear"), root.config)
    parts = {"vision_tower.": tower.tensors, "mm_projector.layers.": _part(root, PROJECTOR), "llm.": _language(root)}
    return config, MergedView(parts)


def vila_config(root: dict[str, Any], vision: dict[str, Any], projector: str, language: dict[str, Any]) -> dict:
    """Returns a configuration of the VILA family."""
    settings = {name: root[name] for name in ("mm_vision_select_layer", "mm_vision_select_feature") if name in root}
    width = language.get("hidden_size", 4096)
    visual = {"vision_tower": vision, "mm_projector_type": projector, "hidden_size": width, **settings}
    return {"model_type": "vila", "visual": visual, "decoder": _decoder(language)}


@contextlib.contextmanager
def processor_files(
    language: HFFolder, tower: Path | None, root: dict[str, Any], image_size: int, template: str | None = None
) -> Iterator[list[Path]]:
    """Yields the tokenizer's files, the tower's image processor, changed to what is done with a picture's shape, and
    where the folder has no template of a conversation this one."""
    files = [path for path in language.processor_files if path.name != "preprocessor_config.json"]
    with tempfile.TemporaryDirectory() as scratch:
        if not any(path.name == "tokenizer.json" for path in files):
            made = make_tokenizer(language.path)
            files += [_written(Path(scratch) / name, content) for name, content in made.items()]
        places = [folder / "preprocessor_config.json" for folder in (tower, language.path) if folder is not None]
        own = next((read_json(path, CheckpointError, WHAT) for path in places if path.is_file()), None)
        settings = own or {"image_processor_type": "CLIPImageProcessor", "size": image_size, "crop_size": image_size}
        image_settings = _shaped(settings, root.get("image_aspect_ratio"))
        files.append(_written(Path(scratch) / "preprocessor_config.json", json.dumps(image_settings)))
        if template is not None and read_template(language.path, with_images=True) is None:
            files.append(_written(Path(scratch) / "chat_template.jinja", template))
        yield files


def _shaped(settings: dict[str, Any], ratio: str | None) -> dict[str, Any]:
    """Returns the settings for a ratio; `resize`: a picture is pressed into the square; `pad`: it gets a border of the
    mean colour before; else the tower's own way."""
    if ratio not in ("resize", "pad"):
        return settings
    size = settings.get("crop_size") or settings.get("size") or {}
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
    settings = settings | {"size": {"height": side, "width": side}, "do_center_crop": False}
    return settings | ({"pad_to_square": True} if ratio == "pad" else {})


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
