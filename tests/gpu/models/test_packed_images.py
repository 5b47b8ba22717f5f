"""Passes over images of any size on a GPU: graphs, of the sizes that come again, give what eager passes do."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models.engines import engine_dir
from tests.kits.models.families import MODELS
from tests.unit.executor.test_packed_images import SIDES, images_of
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


@pytest.mark.parametrize("name", ["lighton-ocr", "qwen2.5-vl", "qwen2-vl", "pix2struct"])
def test_features_of_graphs_are_those_of_the_cpu(name, tmp_path):
    engine = engine_dir(MODELS[name](), tmp_path, max_batch_size=2)
    on_gpu, on_cpu = (Pipeline(engine, RuntimeConfig(device=device)) for device in ("cuda", "cpu"))
    encoder, generator = on_gpu.llm.encoders.patch_encoder, torch.Generator().manual_seed(0)
    assert encoder is not None and encoder.graphs is not None
    encoder.most, keys = 2, set()
    for levels in (True, False, True, False, True, False):
        images = images_of(encoder.config, SIDES, generator, levels=levels)
        found, want = (pipe.llm.encoders.encode_pixels(images) for pipe in (on_gpu, on_cpu))
        for ours, theirs in zip(found, want, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)
        keys.add(len(encoder.graphs._graphs))
    assert keys == {0, 2}  # the first time none, then one of each pair of sizes
