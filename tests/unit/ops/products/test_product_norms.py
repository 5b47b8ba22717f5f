"""Norms that products beside them compute: what waits for what, and that nothing else reads a norm's row."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.kits.models.engines import pipeline
from tests.kits.models.families import MODELS, inputs_of
from vlm.layers.norm import RmsNorm
from vlm.ops.activation import Activation
from vlm.ops.kernels import gemm, gemm_shapes, nvrtc
from vlm.ops.kernels.norms_ahead import Norm, NormsAhead, Product
from vlm.ops.kernels.product_norms import MOST_ROWS, Link, between, may_be_followed

DECODERS = (
    "t5",
    "gated t5",
    "umt5",
    "t5gemma",
    "t5gemma2",
    "llama",
    "qwen2",
    "qwen3",
    "llava",
    "lighton-ocr",
    "idefics3",
    "qwen2-vl",
    "qwen2.5-vl",
    "blip2-t5",
    "pix2struct",
)


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("stream", [gemm.TYPES[torch.bfloat16], gemm.TYPES[torch.float32]])
@pytest.mark.parametrize("rows", [size for size in gemm_shapes.ROWS if size <= MOST_ROWS])
def test_it_compiles_ahead_of_a_norm_and_behind(rows, stream):
    for splits in (1, gemm_shapes.LARGEST_CLUSTER):
        for gated, normed, followed in ((False, False, stream), (True, True, None)):
            shape = gemm_shapes.Shape(
                gemm_shapes.BFLOAT16, rows, 512, 512, gated=gated, splits=splits, stages=4, normed=normed
            )
            values = gemm.constants(shape, gemm.TYPES[torch.bfloat16], gemm.ACTIVATIONS["silu"] * gated, None, followed)
            assert nvrtc.compiled("gemm.cu", tuple(sorted(values.items())), "sm_90a")[:4] == b"\x7fELF"


def product(
    rows: int = 4, width: int = 128, *, dtype: torch.dtype = torch.bfloat16, launched: list, **changes
) -> Product:
    x, weight = (torch.ones(count, 64, dtype=dtype) for count in (rows, width))
    values: dict = {"x": x, "weight": weight, "bias": None, "activation": None, "scales": None}
    values |= {"row": torch.zeros(rows, width, dtype=dtype)} | changes

    def compute(each: Product) -> None:
        launched.append("product")
        each.row.fill_(2.0)

    return Product(**values, compute=compute)


def norm_of(delta: torch.Tensor, launched: list) -> Norm:
    x, row = torch.ones(delta.shape), torch.zeros_like(delta)
    gain = torch.ones(delta.shape[1], dtype=delta.dtype)
    return Norm(x, delta, gain, None, 1e-5, torch.empty_like(x), row, lambda each, rounding: launched.append("norm"))


def test_a_product_waits_for_the_norm_that_adds_it_and_this_for_the_next_product():
    launched: list = []
    first, second = product(launched=launched), product(launched=launched)
    norm = norm_of(first.row, launched)
    with NormsAhead(one_reader=True) as ahead:
        ahead.put(first)
        assert ahead.offer(norm)
        found = ahead.taken_norm(norm.row)
        assert found is not None and found.product is first
        link = between(found, second)
        assert isinstance(link, Link) and link.squares.shape == (2, 4)
    assert not launched  # the two products compute it


def test_whoever_reads_what_waits_has_it_computed_in_order():
    launched: list = []
    products = [product(launched=launched) for _ in range(3)]
    norms = [norm_of(each.row, launched) for each in products]
    twos, other = torch.full((4, 128), 2.0, dtype=torch.bfloat16), norm_of(torch.ones(4, 128), launched)
    with NormsAhead(one_reader=True) as ahead:
        ahead.put(products[0])
        assert torch.equal(products[0].row, twos) and launched == ["product"]
        assert not ahead.offer(norms[0])  # what it adds has been computed
        ahead.put(products[1])
        assert ahead.offer(norms[1]) and launched == ["product"]
        assert norms[1].row.add(0).shape == (4, 128) and launched == ["product"] * 2 + ["norm"]
        ahead.put(products[2])
        assert not ahead.offer(other)  # it adds something else
        assert launched[3:] == ["product"]


def test_what_may_wait():
    launched: list = []
    assert may_be_followed(product(MOST_ROWS, launched=launched))
    others = (
        product(MOST_ROWS + 1, launched=launched),
        product(width=96, launched=launched),  # no whole tiles
        product(dtype=torch.float16, launched=launched),
        product(activation=Activation("relu"), launched=launched),
        product(scales=(torch.ones(4, 1), torch.ones(128, 1)), launched=launched),
        product(row=torch.zeros(4, 128), launched=launched),
    )
    assert not any(map(may_be_followed, others))
    last = product(launched=launched)
    norm = norm_of(last.row, launched)
    assert between(norm, last) is None  # no product waits ahead of it


class Readers(TorchDispatchMode):
    """Counts the operations that read each of some tensors, by their memory, but those that only view it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[int, int] = {}
        self.kept: list[torch.Tensor] = []  # so that their memory is nobody else's
        self.is_open = False

    def __enter__(self):
        self.is_open = True
        return super().__enter__()

    def __exit__(self, *error):
        self.is_open = False
        return super().__exit__(*error)

    def watch(self, x: torch.Tensor) -> None:
        self.kept.append(x)
        self.counts[x.untyped_storage().data_ptr()] = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_view = any(value.alias_info is not None for value in func._schema.returns)
        for x in () if is_view else {id(x): x for x in tree_leaves((args, kwargs))}.values():
            if isinstance(x, torch.Tensor) and (at := x.untyped_storage().data_ptr()) in self.counts:
                self.counts[at] += 1
        return result


@pytest.mark.parametrize("name", DECODERS)
def test_the_row_of_a_norm_that_adds_is_read_by_one_product(name, tmp_path, monkeypatch):
    """What `one_reader` says of every decode step without adapters; nobody reads what was added any more."""
    pipe = pipeline(MODELS[name](), tmp_path)
    told: list[bool] = []
    readers: list[Readers] = []
    added: list[tuple[Readers, int]] = []

    def norms_ahead(device, *, rounds, one_reader):
        told.append(one_reader)
        readers.append(Readers())
        return readers[-1]

    forward = RmsNorm.forward

    def watched(self, x, delta=None):
        stream, row = forward(self, x, delta)
        if delta is not None and readers and readers[-1].is_open:  # a late input is encoded between two steps
            readers[-1].watch(row)
            added.append((readers[-1], delta.untyped_storage().data_ptr()))
            readers[-1].watch(delta)
        return stream, row

    monkeypatch.setattr("vlm.executor.paged.runner.norms_ahead", norms_ahead)
    monkeypatch.setattr(RmsNorm, "forward", watched)
    pipe.generate(inputs_of(pipe), max_new_tokens=3)
    assert added and not any(each.counts.pop(at) for each, at in added)
    counts = [count for each in readers for count in each.counts.values()]
    assert all(told) and len(counts) >= 4 and set(counts) == {1}
