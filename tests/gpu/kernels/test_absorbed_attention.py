"""Attention over an encoder's hidden rows on a GPU, against its reference in float32."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.kernels.guarded import guarded
from tests.gpu.kernels.test_attend import relative
from tests.gpu.marks import HOPPER
from vlm.ops.attention.absorbed_attention import absorbed_attention, reference
from vlm.ops.kernels import absorbed_attention as kernels
from vlm.ops.layouts.paged_kv import HiddenRows

pytestmark = HOPPER
# rows, heads, head size, columns, block size, blocks a table
SHAPES = (
    (1, 16, 64, 1024, 16, 37),
    (3, 12, 64, 768, 16, 5),
    (128, 16, 64, 1024, 16, 22),
    (140, 16, 64, 1024, 16, 9),
    (64, 8, 64, 512, 32, 3),
    (5, 3, 16, 256, 8, 30),
    (9, 16, 128, 1024, 16, 1),
    # two programs a row
    (1, 32, 128, 1024, 16, 37),
    (128, 32, 128, 1024, 16, 22),
    (40, 32, 128, 1024, 32, 9),
    (70, 24, 128, 512, 16, 4),
)
SLOTS = 150


def inputs(shape, dtype: torch.dtype) -> tuple:
    """Returns queries, a weight, its bias and hidden rows: one, all there is room for, and what lies between."""
    torch.manual_seed(0)
    rows, heads, dim, width, block, most = shape
    blocks = torch.randn(SLOTS * most + 1, block, width, device="cuda", dtype=dtype)
    blocks[-1] = float("nan")  # must not be read
    tables = torch.randperm(SLOTS * most, device="cuda", dtype=torch.int32).view(SLOTS, most)
    slots = torch.randperm(SLOTS, device="cuda", dtype=torch.int32)[:rows]
    lengths = torch.randint(1, most * block + 1, (rows,), device="cuda", dtype=torch.int32)
    lengths[0] = most * block
    if rows > 1:
        lengths[1] = 1
        tables[slots[1], 1:] = SLOTS * most
    q = torch.randn(rows, 3, heads, dim, device="cuda", dtype=dtype)[:, 1]
    weight = torch.randn(2 * heads * dim, width, device="cuda", dtype=dtype) * width**-0.5
    bias = torch.randn(2 * heads * dim, device="cuda", dtype=dtype)
    return q, weight, bias, HiddenRows(blocks, tables, slots, lengths), dim**-0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_see_what_the_reference_sees(shape, dtype):
    q, weight, bias, hidden, scale = inputs(shape, dtype)
    _, heads, dim, width, block, _ = shape
    assert kernels.fits(heads, dim, width, dtype, q.device, block_size=block)
    for each in (bias, None):
        found = absorbed_attention(q, weight, each, hidden, scale)
        assert found.shape == q.shape and found.dtype == dtype
        whole = [None if x is None else x.float() for x in (q, weight, each)]
        want = reference(*whole, hidden._replace(blocks=hidden.blocks.float()), scale)
        assert relative(found, want) < (2e-3 if dtype is torch.float16 else 1.5e-2)


@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[8]])
def test_nothing_behind_the_tensors_is_read_or_written(shape):
    q, weight, bias, hidden, scale = inputs(shape, torch.bfloat16)
    want = absorbed_attention(q, weight, bias, hidden, scale)
    behind = HiddenRows(guarded(hidden.blocks[:-1].contiguous()), *map(guarded, hidden[1:]))
    found = absorbed_attention(guarded(q.contiguous()), guarded(weight), guarded(bias), behind, scale)
    assert torch.equal(found, want)


@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[8]])
def test_a_graph_of_it_follows_lengths_that_change(shape):
    q, weight, bias, hidden, scale = inputs(shape, torch.bfloat16)
    absorbed_attention(q, weight, bias, hidden, scale)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = absorbed_attention(q, weight, bias, hidden, scale)
    for length in (1, 31, 32, 33, 100):
        hidden.lengths.fill_(length)
        hidden.tables[hidden.tables == SLOTS * shape[5]] = 0
        graph.replay()
        assert torch.equal(found, absorbed_attention(q, weight, bias, hidden, scale))


def test_other_shapes_have_no_kernel():
    device = torch.device("cuda")
    for heads, dim, width, dtype, block in (
        (32, 64, 2048, torch.bfloat16, 16),
        (32, 64, 1024, torch.bfloat16, 16),
        (48, 128, 1024, torch.bfloat16, 16),
        (16, 80, 1280, torch.bfloat16, 16),
        (8, 64, 640, torch.float16, 16),
        (16, 64, 1024, torch.float32, 16),
        (16, 64, 1024, torch.bfloat16, 12),
    ):
        assert not kernels.fits(heads, dim, width, dtype, device, block_size=block)
