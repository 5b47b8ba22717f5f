"""The product of one row with weights of 16, 8 and 4 bits on a GPU that has it, against float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.marks import CLUSTERS
from vlm.layers.quant.fp8 import Fp8
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.int8 import Int8
from vlm.ops.activation import Activation, reference
from vlm.ops.kernels import gemv
from vlm.ops.kernels.add_norm import add_norm
from vlm.ops.kernels.linear import linear
from vlm.ops.kernels.norms_ahead import Norm
from vlm.ops.products.norms_ahead import norms_ahead
from vlm.ops.products.quantized_linear import linear4, linear8

pytestmark = CLUSTERS
METHODS = {
    "int8": Int8(),
    "fp8": Fp8(),
    "int4": Int4(128),
    "int4-256": Int4(256),
    "int4-asymmetric": Int4(128, symmetric=False),
}
SIZES = ((4096, 4096), (4096, 11008), (96, 256), (1024, 2816), (50272, 1024))  # outputs, inputs
ENDINGS = (None, Activation("relu"), Activation("gelu_new"), Activation("silu", gated=True), Activation("gelu", True))


def product(method, kept: dict[str, torch.Tensor], x: torch.Tensor, bias, activation) -> torch.Tensor:
    weight, scale, zero = kept.get("weight_packed", kept.get("weight")), kept["weight_scale"], kept.get("weight_zero")
    assert weight is not None and gemv.fits(x, weight, scale, zero, activation)
    return gemv.linear(x, weight, scale, zero, bias, torch.float32, activation)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", METHODS)
def test_products_are_those_of_the_dequantized_weight(name, dtype):
    torch.manual_seed(0)
    method = METHODS[name]
    for outputs, inputs in SIZES:
        kept = method.quantize(torch.randn(outputs, inputs, device="cuda"))
        exact = method.dequantize(kept).double()
        bias = torch.randn(outputs, device="cuda", dtype=dtype)
        for ending in ENDINGS if inputs <= 4096 else ENDINGS[-2:]:
            # far from 0 on average, and with a few large values: as the inputs of a feed-forward layer's second product
            x = (torch.randn(1, inputs, device="cuda") + 0.5).to(dtype)
            x[0, ::97] *= 100
            want = torch.nn.functional.linear(x.double(), exact, bias.double())
            want = want if ending is None else reference(want, ending)
            error = (product(method, kept, x, bias, ending) - want).norm() / want.norm()
            assert error < 3e-6, (outputs, inputs, ending)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e30])
def test_bfloat16_of_any_size_fits(scale):
    torch.manual_seed(0)
    method = Int8()
    kept = method.quantize(torch.randn(64, 256, device="cuda"))
    x = (torch.randn(1, 256, device="cuda") * scale).bfloat16()
    want = torch.nn.functional.linear(x.double(), method.dequantize(kept).double())
    assert (product(method, kept, x, None, None) - want).norm() < 3e-6 * want.norm()
    assert not product(method, kept, torch.zeros_like(x), None, None).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dense_products_are_exact_up_to_the_order_of_sums(dtype):
    torch.manual_seed(0)
    for outputs, inputs in (*SIZES, (22016, 4096), (64, 64), (50257, 1024), (70, 256)):
        weight, bias = torch.randn(outputs, inputs, device="cuda", dtype=dtype), torch.randn(outputs, device="cuda")
        bias, x = bias.to(dtype), (torch.randn(1, inputs, device="cuda") + 0.5).to(dtype)
        for ending in ENDINGS:
            gated = ending is not None and ending.gated
            if outputs % 2 and gated:
                continue
            assert gemv.fits(x, weight, None, None, ending) == (outputs % 16 == 0 or not gated)
            want = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
            want = want if ending is None else reference(want, ending)
            found = linear(x, weight, bias, torch.float32, ending)
            assert (found - want).norm() < 3e-6 * want.norm(), (outputs, inputs, ending)
    large, x = torch.empty(32000, 4096, device="cuda", dtype=dtype), torch.empty(1, 4096, device="cuda", dtype=dtype)
    assert not gemv.fits(x, large, None, None, None)  # read faster by the kernel of tiles


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_norm_ahead_is_computed_by_a_dense_product(dtype, centred):
    torch.manual_seed(0)
    for outputs, inputs in ((4096, 4096), (22016, 4096), (96, 256), (512, 512), (50272, 1024)):
        weight = torch.randn(outputs, inputs, device="cuda", dtype=dtype)
        x = (torch.randn(1, inputs, device="cuda") * 3 + 1).to(dtype)
        gain, shift, delta = (torch.randn(inputs, device="cuda").to(dtype) for _ in range(3))
        norm = add_norm(x, delta[None], gain, shift if centred else None, 1e-5)
        want = linear(norm[1], weight, None, torch.float32)
        with norms_ahead(x.device) as ahead:
            found = add_norm(x, delta[None], gain, shift if centred else None, 1e-5)
            y = linear(found[1], weight, None, torch.float32)
            assert ahead.taken(found[1]) is None  # it waits no longer
        assert torch.equal(found[0], norm[0])
        assert (y - want).norm() < 1e-3 * want.norm() * (8 if dtype == torch.bfloat16 else 1)


def test_other_sizes_are_for_the_kernels_of_tiles():
    """Groups of 32, gates that are no whole tiles, more outputs than programs have room for, two rows."""
    torch.manual_seed(0)
    cases = ((Int4(32), 1, 64, 256), (Int4(128), 1, 70, 256), (Int8(), 1, 272000, 128), (Int8(), 2, 64, 256))
    for method, rows, outputs, inputs in cases:
        kept = method.quantize(torch.randn(outputs, inputs, device="cuda"))
        x = torch.randn(rows, inputs, device="cuda", dtype=torch.float16)
        four = "weight_packed" in kept
        weight, scale = kept["weight_packed" if four else "weight"], kept["weight_scale"]
        assert not gemv.fits(x, weight, scale, None, None)
        found = linear4(x, weight, scale, out_fp32=True) if four else linear8(x, weight, scale, out_fp32=True)
        want = torch.nn.functional.linear(x.double(), method.dequantize(kept).double())
        assert (found - want).norm() < 1e-5 * want.norm()


def test_a_graph_repeats_it_on_new_inputs():
    """Programs begin before the kernel ahead has ended: what they read of it must be what it wrote last."""
    torch.manual_seed(0)
    method = Int4(128)
    layers = [method.quantize(torch.randn(1024, 1024, device="cuda") / 32) for _ in range(8)]
    x = torch.randn(1, 1024, device="cuda", dtype=torch.float16)

    def chain() -> torch.Tensor:
        y = x
        for kept in layers:
            y = linear4(y, kept["weight_packed"], kept["weight_scale"])
        return y

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain()
    for _ in range(20):
        x.normal_()
        graph.replay()
        want = x.double()
        for kept in layers:
            want = torch.nn.functional.linear(want, method.dequantize(kept).double())
        assert (y - want).norm() < 1e-2 * want.norm()


RMS, LAYER = False, True


@pytest.mark.parametrize("centred", [RMS, LAYER])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", METHODS)
def test_a_norm_ahead_is_computed_by_the_product(name, dtype, centred, monkeypatch):
    """Its stream is that which it has by itself, to the bit, its row one rounding away at most. Where weights are
    integers, what an RMS norm gives is not rounded before it is multiplied."""
    torch.manual_seed(0)
    method = METHODS[name]
    launched = []
    launch = Norm.launch
    monkeypatch.setattr(Norm, "launch", lambda norm: (launched.append(norm), launch(norm)))
    rounding = 2**-8 if dtype == torch.bfloat16 else 2**-11
    tolerance = 3e-6 if name.startswith("int") and centred is RMS else rounding
    cases = ((4096, 4096, dtype), (96, 256, torch.float32), (96, 768, dtype), (1024, 2816, torch.float32))
    for outputs, inputs, stream in cases:
        kept = method.quantize(torch.randn(outputs, inputs, device="cuda"))
        x = (torch.randn(1, inputs, device="cuda") * 3 + 1).to(stream)
        gain, shift = (torch.randn(inputs, device="cuda").to(dtype) for _ in range(2))
        for delta in (None, torch.randn(1, inputs, device="cuda").to(dtype), torch.randn(1, inputs, device="cuda")):
            norm = add_norm(x, delta, gain, shift if centred else None, 1e-5)
            launched.clear()
            with norms_ahead(x.device):
                found = add_norm(x, delta, gain, shift if centred else None, 1e-5)
                y = product(method, kept, found[1], None, None)
            assert not launched
            assert torch.equal(found[0], norm[0])
            torch.testing.assert_close(found[1], norm[1], rtol=2**-7 if dtype == torch.bfloat16 else 2**-10, atol=1e-6)
            row = normed(norm[0].double(), gain.double(), shift.double() if centred else None)
            want = torch.nn.functional.linear(row, method.dequantize(kept).double())
            assert (y - want).norm() < tolerance * want.norm()


def normed(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
    if shift is not None:
        return torch.nn.functional.layer_norm(x, x.shape[1:], gain, shift, 1e-5)
    return torch.nn.functional.rms_norm(x, x.shape[1:], gain, 1e-5)


@pytest.mark.parametrize("centred", [RMS, LAYER])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_a_norm_ahead_of_any_size_fits(scale, centred):
    """In float16 a row may reach further than its type before it is normed, and lie far from 0."""
    torch.manual_seed(0)
    gain, shift = (torch.randn(1024, device="cuda").half() for _ in range(2))
    x = (torch.randn(1, 1024, device="cuda") + 30) * scale
    x[0, 5::100] *= 50
    row = normed(x.double(), gain.double(), shift.double() if centred else None)
    for method in (None, Int8(), Fp8(), Int4(128)):
        weight = torch.randn(512, 1024, device="cuda")
        kept = {} if method is None else method.quantize(weight)
        exact = weight.half().double() if method is None else method.dequantize(kept).double()
        want = torch.nn.functional.linear(row, exact)
        with norms_ahead(x.device):
            _, found = add_norm(x, None, gain, shift if centred else None, 1e-5)
            y = (
                linear(found, weight.half(), None, torch.float32)
                if method is None
                else product(method, kept, found, None, None)
            )
        assert (y - want).norm() < 2**-10 * want.norm()


def test_whoever_else_reads_a_norm_finds_it(monkeypatch):
    """An operation of torch, a kernel of Triton's, the product of another row, the end of the context."""
    torch.manual_seed(0)
    kept = Int8().quantize(torch.randn(64, 256, device="cuda"))
    x, other = (torch.randn(1, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    gain = torch.randn(256, device="cuda", dtype=torch.float16)
    stream, row = add_norm(x, other, gain, None, 1e-5)
    readers = (
        lambda s, r: r + 0,
        lambda s, r: add_norm(s, r, gain, None, 1e-5)[0] - s,
        lambda s, r: product(Int8(), kept, s, None, None),
        lambda s, r: r.view(2, 128)[:, ::2].clone(),
    )
    wants = [reader(stream, row) for reader in readers]
    for reader, want in zip(readers, wants, strict=True):
        with norms_ahead(x.device):
            found = reader(*add_norm(x, other, gain, None, 1e-5))
        torch.testing.assert_close(found, want)
    with norms_ahead(x.device):
        late = add_norm(x, other, gain, None, 1e-5)
    assert torch.equal(late[0], stream) and torch.equal(late[1], row)
