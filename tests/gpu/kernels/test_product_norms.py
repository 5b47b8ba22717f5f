"""RMS norms between two products of a few rows, which two kernels compute, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.marks import HOPPER
from vlm.ops.activation import Activation, reference
from vlm.ops.add_rms_norm import add_rms_norm
from vlm.ops.kernels import nvrtc
from vlm.ops.products.linear import linear
from vlm.ops.products.norms_ahead import norms_ahead

pytestmark = HOPPER
CUDA, BFLOAT16 = torch.device("cuda"), torch.bfloat16
EPS, BOUND = 1e-5, 1.2e-2  # rows are rounded twice
SIZES = ((512, 512, 1536), (4096, 1024, 3072), (1024, 1024, 4096), (2048, 2048, 264))  # inputs, the stream's, outputs
ROWS = (2, 8, 9, 16)
GATED = Activation("silu", gated=True)


class Chain:
    """A product, a norm that adds it to a stream, and the product of the norm's rows."""

    def __init__(self, rows: int, sizes: tuple[int, int, int], dtype: torch.dtype = BFLOAT16,
                 stream: torch.dtype = BFLOAT16):  # fmt: skip
        torch.manual_seed(rows)
        inputs, width, outputs = sizes
        normal = lambda *size: torch.randn(*size, device=CUDA)  # noqa: E731
        self.x, self.residual = normal(rows, inputs).to(dtype), (3 * normal(rows, width) + 1).to(stream)
        weights = ((width, inputs), (outputs, width))
        self.first, self.second = ((normal(*size) * size[1] ** -0.5).to(dtype) for size in weights)
        self.first_bias, self.second_bias = normal(width).to(dtype), normal(outputs).to(dtype)
        self.gain = (1 + normal(width)).to(dtype)

    def product(self) -> Tensor:
        return linear(self.x, self.first, self.first_bias)

    def norm(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(self.residual, delta, self.gain, EPS)

    def run(self, activation: Activation | None = None) -> tuple[Tensor, Tensor]:
        """Returns the stream, and the second product."""
        stream, rows = self.norm(self.product())
        return stream, linear(rows, self.second, self.second_bias, activation=activation)

    def exact(self, activation: Activation | None = None) -> tuple[Tensor, Tensor]:
        """Computes `run` in float64."""
        stream = self.residual.double() + self.x.double() @ self.first.double().t() + self.first_bias.double()
        y = self.normed(stream) @ self.second.double().t() + self.second_bias.double()
        return stream, y if activation is None else reference(y, activation)

    def normed(self, stream: Tensor) -> Tensor:
        return stream * torch.rsqrt(stream.square().mean(1, keepdim=True) + EPS) * self.gain.double()


@pytest.fixture
def launches(monkeypatch):
    """The names of our kernels in the order of their launches."""
    from triton import knobs

    found, launch = [], nvrtc.CudaKernel.launch
    monkeypatch.setattr(nvrtc.CudaKernel, "launch", lambda self, *a, **k: (launch(self, *a, **k), found.append("gemm")))
    hook = lambda metadata: found.append(metadata.get()["name"])  # noqa: E731
    knobs.runtime.launch_enter_hook.add(hook)
    yield found
    knobs.runtime.launch_enter_hook.remove(hook)


def near(found: Tensor, want: Tensor, bound: float = BOUND) -> bool:
    return bool((found.double() - want).norm() < bound * want.norm())


@torch.inference_mode()
@pytest.mark.parametrize(
    "stream, activation", [(torch.float32, None), (BFLOAT16, Activation("gelu")), (torch.float32, GATED)]
)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_norm_is_computed_by_the_products_beside_it(sizes, stream, activation, launches):
    for rows in ROWS:
        chain = Chain(rows, sizes, stream=stream)
        launches.clear()
        with norms_ahead(CUDA, one_reader=True):
            found = chain.run(activation)
        assert launches == ["gemm", "gemm"], (rows, launches)
        for name, ours, exact in zip(("stream", "y"), found, chain.exact(activation), strict=True):
            assert near(ours, exact), (name, rows)


@torch.inference_mode()
@pytest.mark.parametrize("rows, one_reader", [(17, True), (16, False)])
def test_norms_of_more_rows_and_those_that_others_read_are_kernels(rows, one_reader, launches):
    chain = Chain(rows, SIZES[0])
    with norms_ahead(CUDA, one_reader=one_reader):
        found = chain.run()
    assert launches == ["gemm", "_add_norm", "gemm"]
    for ours, exact in zip(found, chain.exact(), strict=True):
        assert near(ours, exact)


@torch.inference_mode()
def test_a_graph_computes_it_again():
    chain, graph = Chain(16, SIZES[1]), torch.cuda.CUDAGraph()
    with norms_ahead(CUDA, one_reader=True):
        chain.run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph), norms_ahead(CUDA, one_reader=True):
        found = chain.run()
    for seed in (1, 2):
        chain.x.copy_(torch.randn(chain.x.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert near(found[1], chain.exact()[1])


@torch.inference_mode()
def test_whoever_reads_a_product_or_a_norm_first_finds_it(launches):
    chain = Chain(16, SIZES[1])
    product = chain.x.double() @ chain.first.double().t() + chain.first_bias.double()
    rows_of = chain.normed(chain.residual.double() + product)
    with norms_ahead(CUDA, one_reader=True):
        found = chain.product()
        assert near(2 * found, 2 * product)
        assert near(chain.norm(found)[1], rows_of) and launches == ["gemm", "_add_norm"]
        rows = chain.norm(chain.product())[1]
        assert near(2 * rows, 2 * rows_of)
        twice = [linear(rows, chain.second, chain.second_bias) for _ in range(2)]
    assert launches == ["gemm", "_add_norm"] * 2 + ["gemm"] * 2
    assert all(near(found, chain.exact()[1]) for found in twice)


@torch.inference_mode()
@pytest.mark.parametrize("sizes", [(512, 520, 512), (512, 512, 514)])
def test_rows_of_no_whole_tiles_and_what_the_library_multiplies_have_norms_of_their_own(sizes, launches):
    chain = Chain(16, sizes)
    with norms_ahead(CUDA, one_reader=True):
        found = chain.run()
    assert "_add_norm" in launches
    for ours, exact in zip(found, chain.exact(), strict=True):
        assert near(ours, exact)


@torch.inference_mode()
def test_in_float16_a_stream_may_be_wider_than_its_type(launches):
    chain = Chain(16, SIZES[0], torch.float16, torch.float32)
    chain.residual.mul_(1e6)
    with norms_ahead(CUDA, one_reader=True):
        found = chain.run()
    assert launches == ["gemm", "_add_norm", "gemm"]
    for ours, exact in zip(found, chain.exact(), strict=True):
        assert near(ours, exact)
