"""Qwen2-VL's and Pixtral's image processors, which are written here: the bits that transformers' classes make, and none
of their imports."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from tests.kits.publications import lighton_kit, qwen_kit
from visual_engines.images import pixtral_images, qwen_images
from visual_engines.images.pixtral_images import PIXTRAL_IMAGES
from visual_engines.images.qwen_images import QWEN_IMAGES
from vlm.build.builder import build_engine
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.registry.images.transforms import LAST_BITS, NOT_ARGUMENTS
from vlm_app.reference.huggingface import in_patches

SIZES = ((31, 47), (50, 40), (224, 224), (300, 111), (640, 480), (9, 60))
QWEN = [
    {},
    json.loads((qwen_kit.PUBLISHED / "preprocessor_config.json").read_text()),
    {"min_pixels": 3136, "max_pixels": 12845056},
    {"min_pixels": 50000, "max_pixels": 60000, "resample": 2},
    {"size": {"shortest_edge": 6000, "longest_edge": 70000}, "max_pixels": 40000},
    {"patch_size": 16, "merge_size": 3, "temporal_patch_size": 1},
    {"do_resize": False, "patch_size": 1, "merge_size": 1, "crop_size": None, "default_to_square": False},
    {"do_convert_rgb": None, "do_pad": None, "device": None, "data_format": "channels_first"},
    {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 128},
]
PIXTRAL = [
    {},
    json.loads((lighton_kit.PUBLISHED / "processor_config.json").read_text())["image_processor"],
    {"size": {"longest_edge": 90}, "patch_size": 14, "do_pad": False},
    {"size": {"height": 60, "width": 80}, "patch_size": {"height": 10, "width": 16}, "resample": 2},
    {"do_resize": False, "size": 100},
    {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 128},
]
# of forms that neither knows
OTHERS = [
    {"resample": 0},
    {"do_rescale": False},
    {"do_normalize": False},
    {"image_mean": 0.5, "image_std": 0.5},
    {"image_mean": None},
    {"do_resize": "no"},
    {"size": None},
    {"size": [40, 56]},
    {"of_a_later_version": 3},
]
QWEN_OTHERS = [*OTHERS, {"size": {"min_pixels": 3136, "max_pixels": 9999}}, {"min_pixels": 3136.5}]
PIXTRAL_OTHERS = [
    *OTHERS, {"size": {"shortest_edge": 90}}, {"patch_size": 14.5}, {"do_center_crop": True, "crop_size": 40},
]  # fmt: skip
KITS = {"qwen-vl": qwen_kit, "lighton-ocr": lighton_kit}


def pictures() -> list[Image.Image]:
    drawn = np.random.default_rng(0)
    return [Image.fromarray(drawn.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]


@pytest.fixture(autouse=True)
def unchanged_sizes(monkeypatch):
    """Gives transformers' classes copies of their default size, into which older versions write `min_pixels`."""
    for name in (QWEN_IMAGES.name, PIXTRAL_IMAGES.name):
        if (processor_class := getattr(transformers, name, None)) is not None:
            monkeypatch.setattr(processor_class, "size", dict(processor_class.size))


def reference(name: str, settings: dict):
    """Returns transformers' image processor with settings of a preprocessor_config.json; skips where a version has no
    such class."""
    if (processor_class := getattr(transformers, name, None)) is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return processor_class(**{key: value for key, value in settings.items() if key not in NOT_ARGUMENTS})


@pytest.mark.parametrize("settings", QWEN, ids=str)
def test_qwens_squares_are_the_bits_of_its_class(settings, monkeypatch):
    monkeypatch.setattr(qwen_images, "_by_transformers", None)
    theirs = reference(QWEN_IMAGES.name, settings)
    ours = QWEN_IMAGES.load(QWEN_IMAGES.name, settings)
    sizes = {"side": theirs.patch_size, "merge": theirs.merge_size, "frames": theirs.temporal_patch_size}
    for picture in (*pictures(), Image.new("RGB", (3, 590), "teal"), Image.new("RGB", (1, 1))):
        found, want = in_patches(ours.values([picture]), **sizes), theirs([picture], return_tensors="pt")
        assert torch.equal(found["image_grid_thw"], want["image_grid_thw"])
        assert torch.equal(found["pixel_values"], want["pixel_values"])


def test_qwens_sizes_are_those_of_smart_resize():
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl")
    drawn = np.random.default_rng(0)
    squares = qwen_images.SquaredImage(28, 3136, 1003520, "bicubic")
    for height, width in drawn.integers(1, 3000, (2000, 2)).tolist():
        if max(height, width) <= 200 * min(height, width):
            assert squares.size_of(height, width) == module.smart_resize(height, width, 28, 3136, 1003520)


@pytest.mark.parametrize("settings", PIXTRAL, ids=str)
def test_pixtrals_patches_are_the_bits_of_its_class(settings, monkeypatch):
    monkeypatch.setattr(pixtral_images, "transformers_class", None)
    theirs = reference(PIXTRAL_IMAGES.name, settings)
    ours = PIXTRAL_IMAGES.load(PIXTRAL_IMAGES.name, settings)
    for picture in pictures():
        assert torch.equal(ours.values([picture]), theirs([picture], return_tensors="pt")["pixel_values"])


@pytest.mark.parametrize("module, spec", [(qwen_images, QWEN_IMAGES), (pixtral_images, PIXTRAL_IMAGES)])
def test_defaults_are_those_of_the_class(module, spec):
    theirs = reference(spec.name, {})
    for setting, ours in module.DEFAULTS.items():
        own = getattr(theirs, setting, None)
        if own is not None and isinstance(ours, dict):
            own = {key: value for key, value in dict(own).items() if value is not None}
        assert (own or False if ours is False else own) == ours, setting


@pytest.mark.parametrize(
    "module, of_library, spec, settings",
    [
        *((qwen_images, "_by_transformers", QWEN_IMAGES, settings) for settings in QWEN_OTHERS),
        *((pixtral_images, "transformers_class", PIXTRAL_IMAGES, settings) for settings in PIXTRAL_OTHERS),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else getattr(value, "name", ""),
)
def test_settings_of_another_form_are_left_to_the_class(module, of_library, spec, settings, monkeypatch):
    calls = []
    monkeypatch.setattr(module, of_library, lambda *arguments: calls.append(arguments))
    spec.load(spec.name, settings)
    assert calls == [(spec.name, settings)]


@pytest.mark.parametrize("settings", [{"resample": 1}, {"do_rescale": False}, {"image_mean": 0.5}], ids=str)
def test_what_qwens_class_does_by_itself_is_put_together_again(settings):
    theirs = reference(QWEN_IMAGES.name, settings)
    for picture in pictures():
        found = in_patches(QWEN_IMAGES.load(QWEN_IMAGES.name, settings).values([picture]), side=14, merge=2, frames=2)
        want = theirs([picture], return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(found["pixel_values"], want, rtol=0, atol=LAST_BITS)


@pytest.mark.parametrize("name", KITS)
def test_an_engine_reads_an_image_without_what_the_classes_import(name, tmp_path):
    KITS[name].save(tmp_path / "hf")
    checkpoint = convert_folder(tmp_path / "hf", tmp_path / "checkpoint")
    build_engine(checkpoint, tmp_path / "engine", BuildConfig(max_batch_size=1))
    code = f"""
import sys
from PIL import Image
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.config import RuntimeConfig

pipe = Pipeline(EngineDir.open({str(tmp_path / "engine")!r}), RuntimeConfig(device="cpu"))
out = pipe.generate(images=Image.new("RGB", (60, 50)), max_new_tokens=1)
print(len(out.token_ids), {{"transformers", "torchvision", "torch._dynamo", "sympy"}} & sys.modules.keys())
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1:] == ["1 set()"], shown.stderr
