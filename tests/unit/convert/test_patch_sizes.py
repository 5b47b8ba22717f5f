"""Patches of image processors and of towers that no image has: told of before a model is converted."""

from __future__ import annotations

import json

import pytest

from tests.kits.publications import lighton_kit
from visual_engines.images.pixtral_images import PIXTRAL_IMAGES
from vlm.convert.folder import convert_folder
from vlm.convert.roles import role_configs
from vlm.errors import CheckpointError, ConfigError, EngineError
from vlm.processing.media.image_processor import ImageProcessor
from vlm.registry.catalogs import architecture
from vlm.registry.images.settings import image_settings

HUGE = 10**9
PATCHES = [
    (0, "patch_size is 0, it must be a whole number above 0"), (-1, "patch_size is -1, it must be"),
    ({"height": 0, "width": 14}, "it must be a whole number above 0, or a height and a width; fetch it again."),
    ("x", "patch_size is 'x', it must be"), ([14], r"patch_size is \[14\], it must be"),
    (HUGE, r"scales images to more than 4,096 pixels a side .patch_size.; fetch it again."),
    (10**30, "more than 4,096 pixels a side"),
    (16, "cuts images into patches of 16 pixels a side, and the model reads them by patches of 14; fetch it again."),
    (64, "cuts images into patches of 64 pixels a side, and the model takes images of 56 × 60; fetch it again."),
]  # fmt: skip


@pytest.mark.parametrize(("size", "says"), PATCHES, ids=[str(size) for size, _ in PATCHES])
def test_patches_that_no_image_has(size, says, tmp_path):
    settings = {"image_processor": {"image_processor_type": "PixtralImageProcessorFast", "patch_size": size}}
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    found = image_settings(tmp_path, [PIXTRAL_IMAGES], CheckpointError)
    with pytest.raises(CheckpointError, match=rf"processor_config\.json .*{says}"):
        found.check_sizes(CheckpointError, (56, 60), side_step=14)
    if size not in (16, 64):
        with pytest.raises(EngineError, match=rf"processor_config\.json .*{says}"):
            ImageProcessor.from_dir(tmp_path, [PIXTRAL_IMAGES])


@pytest.mark.parametrize("size", [14, [14, 28], {"height": 14, "width": 14}], ids=str)
def test_patches_that_images_have(size, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": size}))
    image_settings(tmp_path, [PIXTRAL_IMAGES], CheckpointError).check_sizes(CheckpointError, (56, 60), side_step=14)


@pytest.mark.parametrize("size", [0, 16, HUGE, 1541])
def test_a_folder_whose_patches_no_image_has_is_not_converted(size, tmp_path):
    lighton_kit.save(tmp_path / "model")
    file = tmp_path / "model" / "processor_config.json"
    settings = json.loads(file.read_text())
    settings["image_processor"]["patch_size"] = size
    file.write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"processor_config\.json .*patch"):
        convert_folder(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


TOWERS = {
    "lightonocr-1b": "vision_config", "llava-1.5-7b": "vision_config", "blip2-opt-2.7b": "vision_config",
    "trocr-base": "encoder", "nougat-base": "encoder", "smolvlm-256m": "vision_config",
}  # fmt: skip


@pytest.mark.parametrize(("key", "value", "says"), [
    ("patch_size", HUGE, "patch_size is 1000000000, more than images of .* have room for"),
    ("patch_size", 3000, "patch_size is 3000, more than images of .* have room for"),
    ("patch_size", 0, "patch_size is .*, it must be"),
    ("image_size", HUGE, "image_size is 1000000000 × 1000000000, an image has 4,096 pixels a side at most"),
    ("image_size", 2, "more than images of 2 × 2 have room for"),
])  # fmt: skip
@pytest.mark.parametrize("name", TOWERS)
def test_sizes_of_towers_that_no_image_has(name, key, value, says):
    """Where weights are drawn at random, nothing else tells."""
    spec, hf = architecture(name)
    with pytest.raises(ConfigError, match=says):
        role_configs(spec, {**hf, TOWERS[name]: {**hf[TOWERS[name]], key: value}})


@pytest.mark.parametrize("name", ["lightonocr-1b", "qwen2.5-vl-3b"])
def test_squares_of_patches_that_no_image_has(name):
    spec, hf = architecture(name)
    tower = hf if name == "lightonocr-1b" else hf["vision_config"]
    tower["spatial_merge_size"] = 300
    tower.pop("window_size", None)
    with pytest.raises(ConfigError, match=r"patch_size is 14 and spatial_merge_size 300, more than images of .* have"):
        role_configs(spec, hf)
