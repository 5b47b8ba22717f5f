"""The product of several rows with weights of 16 and 8 bits on a GPU that has it, against float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.marks import HOPPER
from vlm.ops.activation import Activation, reference
from vlm.ops.kernels import gemm
from vlm.ops.kernels.gemm_shapes import MANY_ROWS, MOST_BYTES
from vlm.ops.products.linear import linear
from vlm.ops.products.w8a8 import MOST, product, rounded

pytestmark = HOPPER
SIZES = (
    (4096, 11008),
    (3072, 1024),
    (512, 512),
    (104, 256),
    (520, 640),
    (22016, 4096),
    (2048, 2048),
    (12288, 4096),
    (10248, 1024),
    (50272, 256),
)  # outputs, inputs
ROWS = (2, 3, 8, 9, 31, 64, 65, 100, 128)
ENDINGS = (None, Activation("relu"), Activation("gelu"), Activation("silu", gated=True), Activation("gelu_new", True))


def near(found: torch.Tensor, want: torch.Tensor, tolerance: float) -> bool:
    return bool((found.double() - want).norm() < tolerance * want.norm())


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("outputs, inputs", SIZES)
def test_dense_products_are_exact_up_to_the_order_of_sums(outputs, inputs, dtype):
    torch.manual_seed(0)
    weight, bias = (
        (torch.randn(outputs, inputs, device="cuda") * inputs**-0.5).to(dtype),
        torch.randn(outputs, device="cuda"),
    )
    bias = bias.to(dtype)
    for rows in ROWS:
        x = (torch.randn(rows, inputs, device="cuda") + 0.5).to(dtype)
        sums = x.double() @ weight.double().t()
        for ending in ENDINGS:
            if not gemm.fits(x, weight, ending):
                assert rows > MANY_ROWS // 2 and (outputs * inputs * 2 > MOST_BYTES or outputs > 32768)
                continue
            want = sums + bias.double()
            want = want if ending is None else reference(want, ending)
            assert near(gemm.linear(x, weight, bias, torch.float32, ending), want, 1e-4), (rows, ending)
            assert near(linear(x, weight, bias, activation=ending), want, 4e-3), (rows, ending)
        if gemm.fits(x, weight):
            assert near(linear(x, weight, out_fp32=True), sums, 4e-3 if dtype == torch.bfloat16 else 1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("outputs, inputs", SIZES)
def test_products_of_8_bits(outputs, inputs, dtype):
    torch.manual_seed(0)
    weight, weight_scale = rounded(torch.randn(outputs, inputs, device="cuda"), dtype)
    bias = torch.randn(outputs, device="cuda")
    for rows in (*ROWS, 129, 300):  # more than 128 are not this kernel's: the library's sums of e4m3 keep fewer bits
        x, scale = rounded(torch.randn(rows, inputs, device="cuda"), dtype)
        want = (x.double() @ weight.double().t()) * scale.double() * weight_scale.double().t()
        ours = gemm.fits(x, weight, None, weight_scale)
        tolerance = 2e-2 if not ours and dtype == torch.float8_e4m3fn else 1e-3
        for out in (torch.float16, torch.bfloat16, torch.float32):
            exact = 1e-6 if dtype == torch.int8 else 5e-4
            bound = max(tolerance if not ours else exact, {torch.float16: 5e-4, torch.bfloat16: 4e-3}.get(out, 0.0))
            assert near(product(x, scale, weight, weight_scale, out), want, bound), (rows, out)
            found = product(x, scale, weight, weight_scale, out, bias.to(out))
            assert near(found, want + bias.to(out).double(), bound), (rows, out)


@torch.inference_mode()
def test_rows_that_there_are_not_are_left_alone():
    """A result's memory ends with its last row."""
    x, weight = (torch.randn(n, 256, device="cuda", dtype=torch.float16) for n in (5, 128))
    memory = torch.full((8, 128), 7.0, device="cuda", dtype=torch.float16)
    before, empty = memory.clone(), torch.empty
    try:
        torch.empty = lambda *_, **__: memory[:5]
        found = gemm.linear(x, weight, None, torch.float16)
    finally:
        torch.empty = empty
    assert found.data_ptr() == memory.data_ptr() and torch.equal(memory[5:], before[5:])
    assert near(found, x.double() @ weight.double().t(), 1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("inputs", [3420, 1001])
def test_many_rows_that_are_no_whole_vectors_are_exact_up_to_the_order_of_sums(inputs):
    x, weight = (torch.randn(n, inputs, device="cuda", dtype=torch.bfloat16) for n in (300, 70))
    assert near(linear(x, weight), x.double() @ weight.double().t(), 4e-3)


@torch.inference_mode()
def test_other_sizes_are_for_the_library():
    half, on = torch.float16, "cuda"
    cases = ((1, 64, 256), (129, 64, 256), (16, 63, 256), (16, 64, 200), (100, 50264, 512), (4, 50264, 64))
    fits = [
        gemm.fits(torch.zeros(r, k, device=on, dtype=half), torch.zeros(n, k, device=on, dtype=half))
        for r, n, k in cases
    ]
    assert fits == [True, False, False, False, False, True]
    x, weight = torch.zeros(4, 256, device=on, dtype=half), torch.zeros(64, 256, device=on, dtype=half)
    assert not gemm.fits(x[:, 1:], weight[:, 1:]) and not gemm.fits(x.bfloat16(), weight)
    assert not gemm.fits(x.float(), weight.float())
