"""The product of several rows that is written in CUDA C++: it compiles without a GPU; its results are in tests/gpu."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from vlm.ops.activation import Activation
from vlm.ops.kernels import gemm, gemm_shapes, nvrtc
from vlm.ops.kernels.gemv import ACTIVATIONS
from vlm.ops.linear import linear
from vlm.ops.w8a8 import product, rounded

PROCESSORS, MEMORY = 132, 227 * 1024  # an H200's, and the bytes of a processor
SIZES = ((512, 512), (512, 2048), (1024, 1024), (4096, 1024), (4096, 12288), (4096, 22016), (11008, 4096), (64, 4))


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("kind", sorted(gemm_shapes.ITEM_BYTES))
def test_it_compiles_for_every_type_and_ending(kind):
    endings = ((False, "gelu", 1), (True, "silu", gemm_shapes.LARGEST_CLUSTER), (False, "", 2))
    cases = itertools.product(gemm_shapes.ROWS, endings)
    for (rows, (gated, act, splits)), y in zip(cases, itertools.cycle(range(3)), strict=False):
        assert_compiles(gemm_shapes.Shape(kind, rows, 4096, 4096, gated, splits, 4), y, act)


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("rows", [32, 64, 128])
def test_it_compiles_for_several_groups_of_warps(groups, rows):
    for gated, act in ((True, "silu"), (False, "")):
        assert_compiles(gemm_shapes.Shape(gemm_shapes.FLOAT16, rows, 4096, 22016, gated, 1, 4, groups=groups), 1, act)


def assert_compiles(shape, y, act):
    values = gemm.constants(shape, y, ACTIVATIONS[act], None if act else y)
    assert nvrtc.compiled("gemm.cu", tuple(sorted(values.items())), "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.parametrize("activation", [None, Activation("gelu")])
@pytest.mark.parametrize("kind", sorted(gemm_shapes.ITEM_BYTES))
@pytest.mark.parametrize("rows", [2, 8, 9, 64, 65, 128])
def test_programs_share_the_inputs_and_a_processor_s_memory(kind, rows, activation):
    for inputs, outputs in SIZES:
        shape = gemm_shapes.shape_of(kind, rows, inputs, outputs, activation, PROCESSORS)
        lines = inputs * gemm_shapes.ITEM_BYTES[kind] // gemm_shapes.LINE
        if not lines:
            continue
        tiles_of_rows = -(-rows // shape.rows)
        assert shape.rows % (2 * shape.splits) == 0 and shape.splits <= max(1, lines)
        programs = min(gemm_shapes.MOST_PROGRAMS, -(-shape.tiles * shape.splits * tiles_of_rows // PROCESSORS))
        assert shape.stages > 0 and programs * (shape.shared + 1024) <= MEMORY
        each = shape.tiles * shape.splits * tiles_of_rows / PROCESSORS
        most = gemm_shapes.CLUSTERED_TWICE if shape.splits == gemm_shapes.LARGEST_CLUSTER else 1
        assert shape.splits == tiles_of_rows == 1 or each <= most or (shape.splits == 2 and shape.tiles > PROCESSORS)


def test_rows_are_shared_out_where_the_weight_leaves_processors_idle():
    size = {"rows": 128, "processors": PROCESSORS}
    shapes = [
        gemm_shapes.shape_of(gemm_shapes.BFLOAT16, inputs=inputs, outputs=outputs, activation=act, **size)
        for inputs, outputs, act in (
            (512, 512, None), (1024, 1024, None), (1024, 4096, Activation("gelu")), (4096, 1024, None),
            (2048, 2048, None),
        )
    ]  # fmt: skip
    assert [(shape.rows, shape.splits) for shape in shapes] == [(32, 1), (64, 2), (128, 2), (128, 4), (128, 2)]
    fewer = [
        gemm_shapes.shape_of(gemm_shapes.BFLOAT16, 64, inputs, inputs, None, PROCESSORS).rows for inputs in (512, 1024)
    ]
    assert fewer == [32, 64]


def test_narrow_weights_of_many_inputs_are_shared_out():
    shapes = [
        gemm_shapes.shape_of(gemm_shapes.FLOAT16, 32, *size, None, PROCESSORS)
        for size in ((512, 512), (4096, 1024), (4096, 12288))
    ]
    assert [(shape.tiles, shape.splits) for shape in shapes] == [(8, 1), (16, 4), (192, 2)]
    # boxes of gates, and of what they gate
    assert (
        gemm_shapes.shape_of(gemm_shapes.E4M3, 32, 4096, 22016, Activation("silu", gated=True), PROCESSORS).box_rows
        == 32
    )


def test_clusters_of_four_are_made_of_three_quarters_of_the_processors():
    few, many = (
        [
            gemm_shapes.shape_of(gemm_shapes.BFLOAT16, rows, 1024, 64 * tiles, None, PROCESSORS).splits
            for tiles in (24, 25, 66, 67)
        ]
        for rows in (16, 64)
    )
    assert few == [4, 2, 2, 1] and many == [2, 2, 2, 1]
    # many rows have eight lines a program, few two
    lines = (1, 2, 4, 8, 16, 32)
    splits = {
        rows: [gemm_shapes.shape_of(gemm_shapes.BFLOAT16, rows, 64 * n, 512, None, PROCESSORS).splits for n in lines]
        for rows in (16, 32)
    }
    assert splits == {16: [1, 1, 2, 4, 4, 4], 32: [1, 1, 1, 1, 2, 4]}


def test_two_programs_of_long_clusters_share_a_processor():
    shapes = [
        gemm_shapes.shape_of(gemm_shapes.BFLOAT16, rows, inputs, 64 * tiles, None, PROCESSORS)
        for rows, inputs, tiles in ((8, 2048, 32), (32, 5120, 41), (32, 2048, 42), (64, 2048, 32), (8, 1984, 32))
    ]
    assert [shape.splits for shape in shapes] == [4, 4, 2, 2, 2]
    assert all(2 * (shape.shared + 1024) <= MEMORY for shape in shapes[:2])


def test_programs_of_large_weights_are_halved_where_that_leaves_processors_less_each():
    cases = ((4096, 12288), (4096, 22016), (2048, 12288), (4096, 64 * 133))  # a processor has 2, 3, 2 and 2 programs
    for rows in (8, 64):
        splits = [gemm_shapes.shape_of(gemm_shapes.FLOAT16, rows, *sizes, None, PROCESSORS).splits for sizes in cases]
        assert splits == [2, 1, 1, 2]


def test_several_tiles_are_a_program_s_where_there_is_room_for_all_programs_then():
    # 160, 192, 344, 432, 96, 502, 786 and 2,374 tiles
    sizes = (10240, 12288, 22016, 27648, 6144, 32128, 50272, 151936)
    groups = {
        (kind, rows): [gemm_shapes.shape_of(kind, rows, 4096, size, None, PROCESSORS).groups for size in sizes]
        for kind, rows in ((gemm_shapes.FLOAT16, 128), (gemm_shapes.FLOAT16, 64), (gemm_shapes.FLOAT16, 16),
                           (gemm_shapes.E4M3, 128))
    }  # fmt: skip
    assert list(groups.values()) == [
        [2, 2, 3, 2, 1, 2, 1, 1], [1, 1, 3, 1, 1, 1, 2, 1], [1, 1, 1, 1, 1, 1, 2, 1], [1] * 8,
    ]  # fmt: skip
    normed = gemm_shapes.shape_of(gemm_shapes.BFLOAT16, 16, 4096, 50272, None, PROCESSORS, normed=True)
    assert normed.groups == 1  # whose sums of squares are those of a group


def test_large_weights_that_meet_many_rows_are_the_library_s_where_programs_do_not_run_together():
    def suits(kind, rows, inputs):
        return [gemm_shapes.suits(kind, rows, inputs, n, PROCESSORS) for n in (6144, 22016, 32128, 50272)]

    half, eighth = gemm_shapes.FLOAT16, gemm_shapes.E4M3
    assert suits(half, 64, 4096) == [True] * 4 and suits(eighth, 64, 4096) == [True, True, True, False]
    assert suits(half, 128, 4096) == suits(half, 65, 512) == [True, True, True, False]
    assert suits(eighth, 128, 4096) == [True, False, False, False]
    assert suits(half, 129, 64) == [False] * 4


def test_off_cuda_products_are_the_library_s():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 256), torch.randn(64, 256), torch.randn(64)
    silu = Activation("silu", gated=True)
    assert not gemm.fits(x.half(), weight.half(), silu)
    assert linear(x, weight, bias, activation=silu).shape == (5, 32)
    parts = *rounded(x, torch.int8), *rounded(weight, torch.int8)
    gate, up = product(*parts, torch.float32, bias).chunk(2, 1)
    torch.testing.assert_close(product(*parts, torch.float32, bias, silu), torch.nn.functional.silu(gate) * up)
