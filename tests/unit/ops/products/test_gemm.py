"""The product of several rows that is written in CUDA C++: it compiles without a GPU; its results are in tests/gpu."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from vlm.ops.activation import Activation
from vlm.ops.kernels import gemm, nvrtc
from vlm.ops.kernels import gemm_shapes as shapes
from vlm.ops.kernels.gemm_shapes import BFLOAT16, E4M3, FLOAT16
from vlm.ops.kernels.gemv import ACTIVATIONS
from vlm.ops.products.linear import linear
from vlm.ops.products.w8a8 import product, rounded

PROCESSORS, MEMORY = 132, 227 * 1024  # an H200's, and the bytes of a processor
SIZES = ((512, 512), (512, 2048), (1024, 1024), (4096, 1024), (4096, 12288), (4096, 22016), (11008, 4096), (64, 4))


def shape_of(kind, rows, inputs, outputs, *, gated=False, normed=False):
    return shapes.shape_of(kind, rows, inputs, outputs=outputs, gated=gated, processors=PROCESSORS, normed=normed)


def assert_compiles(shape, y, act):
    values = gemm.constants(shape, y, ACTIVATIONS[act], None if act else y)
    assert nvrtc.compiled("gemm.cu", tuple(sorted(values.items())), "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("kind", sorted(shapes.ITEM_BYTES))
def test_it_compiles_for_every_type_and_ending(kind):
    endings = ((False, "gelu", 1), (True, "silu", shapes.LARGEST_CLUSTER), (False, "", 2))
    cases = itertools.product(shapes.ROWS, endings)
    for (rows, (gated, act, splits)), y in zip(cases, itertools.cycle(range(3)), strict=False):
        assert_compiles(shapes.Shape(kind, rows, 4096, 4096, gated=gated, splits=splits, stages=4), y, act)


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("rows", [32, 64, 128])
def test_it_compiles_for_several_groups_of_warps(groups, rows):
    for gated, act in ((True, "silu"), (False, "")):
        assert_compiles(shapes.Shape(FLOAT16, rows, 4096, 22016, gated=gated, stages=4, groups=groups), 1, act)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", sorted(shapes.ITEM_BYTES))
@pytest.mark.parametrize("rows", [2, 8, 9, 64, 65, 128])
def test_programs_share_the_inputs_and_a_processor_s_memory(kind, rows, gated):
    for inputs, outputs in SIZES:
        shape = shape_of(kind, rows, inputs, outputs, gated=gated)
        if not shape.lines:
            continue
        tiles_of_rows = -(-rows // shape.rows)
        assert shape.rows % (2 * shape.splits) == 0 and shape.splits <= max(1, shape.lines)
        each = shape.tiles * shape.splits * tiles_of_rows / PROCESSORS
        programs = min(shapes.MOST_PROGRAMS, math.ceil(each))
        assert shape.stages > 0 and programs * (shape.shared + 1024) <= MEMORY
        most = shapes.CLUSTERED_TWICE if shape.splits == shapes.LARGEST_CLUSTER else 1
        assert shape.splits == tiles_of_rows == 1 or each <= most or (shape.splits == 2 and shape.tiles > PROCESSORS)


def test_rows_are_shared_out_where_the_weight_leaves_processors_idle():
    sizes = ((512, 512), (1024, 1024), (1024, 4096), (4096, 1024), (2048, 2048))
    found = [shape_of(BFLOAT16, 128, *size) for size in sizes]
    assert [(shape.rows, shape.splits) for shape in found] == [(32, 1), (64, 2), (128, 2), (128, 4), (128, 2)]
    assert [shape_of(BFLOAT16, 64, inputs, inputs).rows for inputs in (512, 1024)] == [32, 64]


def test_narrow_weights_of_many_inputs_are_shared_out():
    found = [shape_of(FLOAT16, 32, *size) for size in ((512, 512), (4096, 1024), (4096, 12288))]
    assert [(shape.tiles, shape.splits) for shape in found] == [(8, 1), (16, 4), (192, 2)]
    assert shape_of(E4M3, 32, 4096, 22016, gated=True).box_rows == 32  # boxes of gates, and of what they gate


def test_clusters_of_four_are_made_of_three_quarters_of_the_processors():
    few, many = ([shape_of(BFLOAT16, rows, 1024, 64 * n).splits for n in (24, 25, 66, 67)] for rows in (16, 64))
    assert few == [4, 2, 2, 1] and many == [2, 2, 2, 1]
    # many rows have eight lines a program, few two
    splits = {rows: [shape_of(BFLOAT16, rows, 64 * n, 512).splits for n in (1, 2, 4, 8, 16, 32)] for rows in (16, 32)}
    assert splits == {16: [1, 1, 2, 4, 4, 4], 32: [1, 1, 1, 1, 2, 4]}


def test_two_programs_of_long_clusters_share_a_processor():
    cases = ((8, 2048, 32), (32, 5120, 41), (32, 2048, 42), (64, 2048, 32), (8, 1984, 32))
    found = [shape_of(BFLOAT16, rows, inputs, 64 * tiles) for rows, inputs, tiles in cases]
    assert [shape.splits for shape in found] == [4, 4, 2, 2, 2]
    assert all(2 * (shape.shared + 1024) <= MEMORY for shape in found[:2])


def test_programs_of_large_weights_are_halved_where_that_leaves_processors_less_each():
    cases = ((4096, 12288), (4096, 22016), (2048, 12288), (4096, 64 * 133))  # a processor has 2, 3, 2 and 2 programs
    for rows in (8, 64):
        assert [shape_of(FLOAT16, rows, *sizes).splits for sizes in cases] == [2, 1, 1, 2]


@pytest.mark.parametrize(
    ("kind", "rows", "want"),
    [
        (FLOAT16, 128, [2, 2, 3, 2, 1, 2, 1, 1]),
        (FLOAT16, 64, [1, 1, 3, 1, 1, 1, 2, 1]),
        (FLOAT16, 16, [1, 1, 1, 1, 1, 1, 2, 1]),
        (E4M3, 128, [1] * 8),
    ],
)
def test_several_tiles_are_a_program_s_where_there_is_room_for_all_programs_then(kind, rows, want):
    tiles = (160, 192, 344, 432, 96, 502, 786, 2374)
    assert [shape_of(kind, rows, 4096, 64 * count).groups for count in tiles] == want
    # behind a norm sums of squares are those of a group
    assert [shape_of(kind, rows, 4096, 64 * count, normed=True).groups for count in tiles] == [1] * 8


def test_large_weights_that_meet_many_rows_are_the_library_s_where_programs_do_not_run_together():
    def suits(kind, rows, inputs):
        sizes = (6144, 22016, 32128, 50272)
        return [shapes.suits(kind, rows, inputs, outputs=n, processors=PROCESSORS) for n in sizes]

    assert suits(FLOAT16, 64, 4096) == [True] * 4 and suits(E4M3, 64, 4096) == [True, True, True, False]
    assert suits(FLOAT16, 128, 4096) == suits(FLOAT16, 65, 512) == [True, True, True, False]
    assert suits(E4M3, 128, 4096) == [True, False, False, False]
    assert suits(FLOAT16, 129, 64) == [False] * 4


def test_off_cuda_products_are_the_library_s():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 256), torch.randn(64, 256), torch.randn(64)
    silu = Activation("silu", gated=True)
    assert not gemm.fits(x.half(), weight.half(), silu)
    assert linear(x, weight, bias, activation=silu).shape == (5, 32)
    parts = *rounded(x, torch.int8), *rounded(weight, torch.int8)
    gate, up = product(*parts, torch.float32, bias).chunk(2, 1)
    torch.testing.assert_close(product(*parts, torch.float32, bias, silu), torch.nn.functional.silu(gate) * up)
