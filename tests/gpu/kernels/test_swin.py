"""The Swin encoder on a real device against itself on the CPU, where Hugging Face's is the measure (tests/parity)."""

from __future__ import annotations

import pytest
import torch

from tests.parity.image_to_text.test_swin import SHAPES, pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


def encoders(shape: dict, dtype: torch.dtype):
    _, plain = pair(shape)
    _, fast = pair(shape)
    fast = fast.to("cuda", dtype).requires_grad_(False)
    fast.init_buffers(torch.device("cuda"))
    return plain, fast


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@torch.inference_mode()
def test_float32_features(shape):
    plain, fast = encoders(shape, torch.float32)
    pixels = torch.randn(3, 3, *plain.config.image_size)
    want = plain(pixels)
    found = fast(pixels.cuda()).cpu()
    torch.testing.assert_close(found, want, atol=1e-4 * want.abs().max().item(), rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_half_precision_and_capture(dtype):
    plain, fast = encoders(SHAPES["odd grids"], dtype)
    pixels = torch.randn(3, 3, *plain.config.image_size)
    want = plain(pixels)
    given = pixels.to("cuda", dtype)
    eager = fast(given)
    relative = (eager.float().cpu() - want).norm() / want.norm()
    assert relative < (4e-2 if dtype == torch.bfloat16 else 5e-3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # fails where anything waits for the device
        captured = fast(given)
    graph.replay()
    assert torch.equal(captured, eager)
