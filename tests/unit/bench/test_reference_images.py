"""What Hugging Face's classes are given of images."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vlm_app.reference.huggingface import image_inputs


def model(kind: str, **tower) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(model_type=kind, vision_config=SimpleNamespace(**tower)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sizes_are_exact_in_any_type_of_pixels(dtype):
    """bfloat16 has no 1,190."""
    images = torch.zeros(2, 1, 1540, 1190, dtype=dtype)
    sizes = image_inputs(model("lighton_ocr", model_type="pixtral"), images)["image_sizes"]
    assert sizes.dtype == torch.int64 and sizes.tolist() == [[1540, 1190]] * 2
    tower = {"model_type": "qwen2_5_vl", "patch_size": 1, "spatial_merge_size": 2, "temporal_patch_size": 2}
    grid = image_inputs(model("qwen2_5_vl", **tower), images)["image_grid_thw"]
    assert grid.dtype == torch.int64 and grid.tolist() == [[1, 1540, 1190]] * 2
