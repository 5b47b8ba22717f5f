"""What becomes of a picture of some size: known before an engine is built, for it must have room for the rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from PIL import Image

from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.locate import locate
from vlm.convert.roles import role_configs
from vlm.errors import InputError
from vlm.processing.media.image_processor import ProcessorSource
from vlm.registry.catalogs import configs_of, family, match_family
from vlm_app.bench.config import PromptBenchConfig
from vlm_app.core.architecture import hf_config

if TYPE_CHECKING:
    from pathlib import Path

    from vlm.registry.role_configs import RoleConfigs
    from vlm.registry.spec import FamilySpec


def with_pixel_size(config: PromptBenchConfig) -> PromptBenchConfig:
    """Returns the configuration with the size of the pixel values that its pictures become, where it has any. Raises
    InputError for a model that is given no images, or that does not take what becomes of them."""
    if config.image_size is None:
        return config
    spec, configs, folder = _model(config)
    if not config.num_images(configs):
        raise InputError(f"{config.subject} is given no images; leave --image-size out.")
    vision = configs["visual"]
    source = ProcessorSource(folder, spec.image_processors, vision.image_size, vision.fixed_size)
    height, width = source.load()([Image.new("RGB", config.image_size, "white")]).shape[2:]
    if not vision.takes(height, width):
        raise InputError(
            f"--image-size {'x'.join(map(str, config.image_size))}: the image processor makes {height}×{width} pixels"
            f" of it (height × width), and {config.subject} takes {vision.shapes}; give another size."
        )
    return dataclasses.replace(config, pixel_size=(height, width))


def _model(config: PromptBenchConfig) -> tuple[FamilySpec, RoleConfigs, Path | None]:
    """Returns the family, the networks' configurations and the folder of the image processor's settings, if any."""
    if config.arch is not None:
        hf = hf_config(config.arch)
        return (spec := match_family(hf)), role_configs(spec, hf), None
    assert config.model is not None  # there is one of the two
    source = locate(config.model)
    if source.kind == "hf":
        hf = HFFolder(source.path).config
        return (spec := match_family(hf, source.path)), role_configs(spec, hf), source.path
    if source.kind not in ("engine", "checkpoint"):
        raise InputError(f"--image-size needs a Hugging Face folder, and {config.model} is none; convert it first.")
    is_engine = source.kind == "engine"
    model = EngineDir.open(source.path, verify=False) if is_engine else Checkpoint.open(source.path)
    return family(model.family), configs_of(model), source.path / "processor"
