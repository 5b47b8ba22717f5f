"""VILA-1.5's folders, read as they are published: no repository of VILA's is needed, and nothing in them is run.

Its parts lie in folders of their own (`llm/`, `vision_tower/`, `mm_projector/`), with a config.json beside them. VILA-1
is one checkpoint in LLaVA's form (`visual_engines.converters.llava`).
"""

from __future__ import annotations

from pathlib import Path

from visual_engines.converters.llava import check_settings, processor_files, vila_config, vision_config
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Check, Checkpoint, write_checkpoint
from vlm.artifacts.progress import Progress
from vlm.artifacts.weights import MergedView
from vlm.convert.roles import convert_roles, role_configs
from vlm.errors import CheckpointError, listed
from vlm.registry.catalogs import family


def convert(folder: Path, out: Path, *, progress: Progress | None = None, check: Check | None = None) -> Checkpoint:
    """Converts a VILA-1.5 folder to our checkpoint at `out`, written whole or not at all. `check`: see
    write_checkpoint.

    Raises CheckpointError for a part that is missing or does not fit, ConfigError that names every setting which cannot
    be honoured.
    """
    root = HFFolder(folder).config
    parts = {name: HFFolder(folder / name) for name in ("llm", "vision_tower", "mm_projector")}
    if absent := [name for name, part in parts.items() if not part.path.is_dir()]:
        raise CheckpointError(f"{folder} lacks its folder {listed(absent)}; fetch it again.")
    check_settings(root)
    language, tower = parts["llm"], parts["vision_tower"]
    vision = vision_config(tower.config)
    config = vila_config(root, vision, parts["mm_projector"].config.get("mm_projector_type", "linear"), language.config)
    spec = family("vila")
    tensors = MergedView({f"{name}.": part.tensors for name, part in parts.items()})
    roles = convert_roles(tensors, spec, role_configs(spec, config), folder)
    with processor_files(language, tower.path, root, vision.get("image_size", 224)) as files:
        return write_checkpoint(
            Path(out),
            family="vila",
            roles={name: role.weights for name, role in roles.items()},
            generation=language.generation,
            source=folder.resolve().name,
            processor_files=files,
            check=check,
            progress=progress,
        )
