"""The Swin encoder's kernels on Triton's interpreter, padded grids and odd widths included: no GPU needed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
import torch.nn.functional as F
from visual_engines.models import swin, swin_kernels
from vlm.layers.context import ModelContext
torch.manual_seed(0)
torch.set_grad_enabled(False)

def attention(grid, window, heads, width, shift, qkv_bias):
    config = swin.SwinConfig(image_size=grid, num_channels=3, patch_size=(1, 1), embed_dim=width, depths=(1,),
                             num_heads=(heads,), window_size=window, qkv_bias=qkv_bias)
    module = swin.WindowAttention(config, 0, shift, ModelContext())
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter) * 0.4
    module.init_buffers(torch.device("cpu"))
    x = torch.randn(2, *grid, width)
    want = module._by_windows(x)
    area = window**2
    index = swin.relative_position_index(window)
    table = module.relative_position_bias_table.data[index.view(-1)].view(area, area, -1).permute(2, 0, 1)
    bias = F.pad(table, (0, swin_kernels.padded_area(window) - area)).contiguous()
    found = swin_kernels.window_attention(module.qkv(x), module.qkv.bias, bias, window, shift)
    torch.testing.assert_close(found, want, atol=2e-5, rtol=1e-5)

for shift in (0, 1):
    attention((6, 9), 3, 2, 24, shift, True)
    attention((7, 8), 3, 1, 20, shift, True)
    attention((7, 8), 3, 2, 32, shift, False)
attention((11, 14), 7, 2, 64, 3, True)
attention((10, 20), 10, 1, 16, 0, True)
swin_kernels.MOST_WINDOWS, swin_kernels.WAVES = 4, 1  # of which the last program has fewer
attention((9, 9), 3, 2, 24, 1, True)
attention((19, 20), 10, 1, 16, 5, True)

for grid, width, adds in (((4, 6), 8, True), ((5, 7), 20, True), ((5, 4), 24, False)):
    norm = torch.nn.LayerNorm(4 * width)
    norm.weight.data, norm.bias.data = torch.randn(2, 4 * width).unbind()
    x, delta = torch.randn(2, 3, *grid, width).unbind()
    want = norm(swin.merged(x + delta if adds else x))
    found = swin_kernels.merge_norm(x, delta if adds else None, norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(found, want, atol=2e-5, rtol=1e-5)
print("equal")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed on this platform")
def test_kernels_equal_plain_torch_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, cwd=".")
    assert run.returncode == 0, run.stderr[-3000:]
    assert "equal" in run.stdout
