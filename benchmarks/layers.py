"""Times the kernels of decoder layers, by themselves, in a CUDA graph: a tool for who changes them.

    python benchmarks/layers.py llama-7b gpt2-medium --quantization dense int4
    python benchmarks/layers.py llama-7b --quantization dense fp8 --rows 1 8 32 --kv-cache-dtype fp8

Weights are random, and those of all layers together larger than any cache. What it prints, microseconds a layer, is for
comparing two states of the kernels in one run of a machine; figures of models come from `vlm bench`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.layers.quant.fp8 import Fp8
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.int8 import Int8
from vlm.ops.activation import Activation
from vlm.ops.attention.paged_attention import paged_attention
from vlm.ops.attention.step_attention import step_attention
from vlm.ops.kernels.add_norm import add_norm
from vlm.ops.layouts.paged_kv import KVCache, NewTokens, PagedKV
from vlm.ops.products.linear import linear
from vlm.ops.products.norms_ahead import norms_ahead
from vlm.ops.products.quantized_linear import linear4, linear8
from vlm.ops.products.w8a8 import w8a8

DEVICE, BLOCK, REPLAYS, RUNS = torch.device("cuda"), 16, 4, 15
BYTES, CACHE_BYTES = 4 * 1024**3, 4 * 1024**3  # of all layers' weights, and at most of their caches
METHODS = {"int8": Int8(), "int4": Int4(128), "fp8": Fp8()}
CACHE_TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
Weight = tuple[Tensor, Tensor | None]  # and its scales


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder layer, and what it attends to."""

    hidden: int
    ffn: int
    heads: int
    activation: Activation
    centred: bool  # are its norms LayerNorms?
    context: int
    cross: int = 0  # rows of the encoder's output
    rotary: bool = False
    dtype: torch.dtype = torch.float16

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Returns the (outputs, inputs) of the layer's weights."""
        h, up = self.hidden, self.ffn * (2 if self.activation.gated else 1)
        cross = {"cross_q": (h, h), "cross_out": (h, h)} if self.cross else {}
        return {"qkv": (3 * h, h), "out": (h, h), **cross, "up": (up, h), "down": (h, self.ffn)}


SILU, GELU, NEW_GELU = Activation("silu", gated=True), Activation("gelu"), Activation("gelu_new")
BF16 = torch.bfloat16
SHAPES = {
    "llama-7b": Shape(4096, 11008, 32, SILU, centred=False, context=664, rotary=True),
    "opt-2.7b": Shape(2560, 10240, 32, Activation("relu"), centred=True, context=64),
    "gpt2-medium": Shape(1024, 4096, 16, NEW_GELU, centred=True, context=128),
    "flan-t5-xl": Shape(2048, 5120, 32, Activation("gelu_new", gated=True), False, context=64, cross=350, dtype=BF16),
    "t5-small": Shape(512, 2048, 8, Activation("relu"), centred=False, context=32, cross=64, dtype=BF16),
    "t5-base": Shape(768, 3072, 12, Activation("relu"), centred=False, context=32, cross=64, dtype=BF16),
    "t5-large": Shape(1024, 4096, 16, Activation("relu"), centred=False, context=32, cross=64, dtype=BF16),
    "llama-1b": Shape(2048, 5504, 32, SILU, centred=False, context=200, dtype=BF16),
    "nougat-base": Shape(1024, 4096, 16, GELU, centred=True, context=200, cross=588, dtype=BF16),
}


class Layers:
    """Random layers of a shape, and rows that go through them; `cache`: the type of keys and values."""

    def __init__(self, shape: Shape, kind: str, rows: int, cache: torch.dtype | None):
        self.shape, self.kind, self.rows = shape, kind, rows
        size = sum(outputs * inputs for outputs, inputs in shape.products.values()) * (2 if kind == "dense" else 1)
        self.count = max(4, min(32, BYTES // size))
        self.weights = [{name: _weight(*size, kind, shape.dtype) for name, size in shape.products.items()}
                        for _ in range(self.count)]  # fmt: skip
        each = 4 * rows * (shape.context + shape.cross) * shape.hidden
        pairs = [tuple(_cache(shape, rows, tokens, cache) for tokens in (shape.context, shape.cross or 1))
                 for _ in range(max(1, min(self.count, CACHE_BYTES // each)))]  # fmt: skip
        self.caches = [pairs[i % len(pairs)] for i in range(self.count)]
        self.places, self.cross_places = _places(rows, shape.context), _places(rows, shape.cross or 1)
        self.x = torch.randn(rows, shape.hidden, device=DEVICE, dtype=shape.dtype)
        self.gain = torch.ones(shape.hidden, device=DEVICE, dtype=shape.dtype)
        self.shift = torch.zeros_like(self.gain) if shape.centred else None
        angle = torch.rand(rows, shape.head_dim // 2, device=DEVICE)
        self.angles = torch.stack((angle.cos(), angle.sin()), 1) if shape.rotary else None
        torch.cuda.synchronize()

    @torch.inference_mode()
    def run(self) -> Tensor:
        """Returns what the last layer adds, [rows, hidden]."""
        shape, scale = self.shape, self.shape.head_dim**-0.5
        heads, flat = (self.rows, -1, shape.head_dim), (self.rows, -1)
        x, delta, position = self.x.float(), self.x, self.places[2] - 1
        with norms_ahead(DEVICE, rounds=self.kind == "fp8", one_reader=True):
            for weights, (kv, cross_kv) in zip(self.weights, self.caches, strict=True):
                x, row = self._norm(x, delta)
                q, k, v = self._product(row, weights["qkv"]).view(heads).chunk(3, 1)
                found = step_attention(q, NewTokens(k, v, position, self.angles), kv, *self.places, scale, None)
                delta = self._product(found.reshape(flat), weights["out"])
                if shape.cross:
                    x, row = self._norm(x, delta)
                    q = self._product(row, weights["cross_q"]).view(heads)
                    found = paged_attention(q, cross_kv, *self.cross_places, scale, None)
                    delta = self._product(found.reshape(flat), weights["cross_out"])
                x, row = self._norm(x, delta)
                delta = self._product(self._product(row, weights["up"], shape.activation), weights["down"])
        return delta

    def _norm(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        return add_norm(x, delta, self.gain, self.shift, 1e-5)

    def _product(self, row: Tensor, weight: Weight, activation: Activation | None = None) -> Tensor:
        values, scale = weight
        if scale is None:
            return linear(row, values, activation=activation)
        if self.kind == "int4":
            return linear4(row, values, scale, activation=activation)
        return (w8a8 if self.kind == "fp8" else linear8)(row, values, scale, activation=activation)


def _weight(outputs: int, inputs: int, kind: str, dtype: torch.dtype) -> Weight:
    weight = torch.randn(outputs, inputs, device=DEVICE) * inputs**-0.5
    if kind == "dense":
        return weight.to(dtype), None
    kept = METHODS[kind].quantize(weight)
    return kept["weight_packed" if "weight_packed" in kept else "weight"], kept["weight_scale"]


def _cache(shape: Shape, rows: int, tokens: int, dtype: torch.dtype | None) -> PagedKV:
    size = {"heads": shape.heads, "block_size": BLOCK, "head_dim": shape.head_dim}
    blocks = rows * (tokens // BLOCK + 1) + 1
    return KVCache.zeros(range(1), blocks, **size, dtype=dtype or shape.dtype, device=DEVICE).layer(0)


def _places(rows: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the tables of blocks, the slots and the lengths of sequences."""
    tables = torch.arange(rows * (tokens // BLOCK + 1), device=DEVICE, dtype=torch.int32).view(rows, -1)
    slots, lengths = torch.arange(rows, device=DEVICE), torch.full((rows,), tokens, device=DEVICE)
    return tables, slots.int(), lengths.int()


def microseconds(run: Callable[[], Tensor]) -> float:
    """Returns the median time of a graph of a call."""
    stream, graph, times = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    with torch.cuda.stream(stream):
        run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            run()
        for _ in range(RUNS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / REPLAYS * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--quantization", nargs="*", default=["dense", *METHODS], choices=["dense", *METHODS])
    parser.add_argument("--rows", nargs="*", type=int, default=[1])
    parser.add_argument("--kv-cache-dtype", choices=CACHE_TYPES)
    arguments = parser.parse_args()
    cache = CACHE_TYPES.get(arguments.kv_cache_dtype)
    for name, kind, rows in itertools.product(arguments.shapes, arguments.quantization, arguments.rows):
        layers = Layers(SHAPES[name], kind, rows, cache)
        took = microseconds(layers.run) / layers.count
        print(f"{name:12} {kind:6} {rows:4} rows {took:7.2f} µs a layer", flush=True)
        del layers


if __name__ == "__main__":
    main()
