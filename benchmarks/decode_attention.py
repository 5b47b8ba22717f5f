"""Times the attention of a decode step, by itself, in a CUDA graph: a tool for who changes it.

    python benchmarks/decode_attention.py
    python benchmarks/decode_attention.py lightonocr-1b --kv-cache-dtype fp8 int8

Beside the kernel of compute capability 9.0 runs that of other GPUs. "cross" attends to an encoder's outputs; "absorbed"
to its hidden rows, of which keys and values are products, where there is a kernel. What it
prints, microseconds a layer and terabytes a second of keys and values, is for comparing two states of a kernel in one
run of a machine; figures of models come from `vlm bench`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.attention.absorbed_attention import absorbed_attention
from vlm.ops.attention.paged_attention import paged_attention
from vlm.ops.attention.step_attention import step_attention
from vlm.ops.kernels import absorbed_attention as absorbed
from vlm.ops.kernels import attend_group
from vlm.ops.layouts.paged_kv import HiddenRows, KVCache, NewTokens, PagedKV

DEVICE, BLOCK, DTYPE = torch.device("cuda"), 16, torch.bfloat16
LAYERS, REPLAYS, RUNS = 30, 4, 9
CACHE_BYTES = 12 * 1024**3  # at most, of all layers; more of them than that share caches
CACHE_TYPES = {"16-bit": DTYPE, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass(frozen=True)
class Step:
    """The rows of a step, and what each of them sees."""

    rows: int
    heads: int
    kv_heads: int
    dim: int
    context: int
    is_cross: bool = False
    far: int | None = None  # the distance from which on a bias stays what it is
    hidden: int | None = None  # how wide an encoder's rows are; None: as all heads together

    @property
    def width(self) -> int:
        return self.hidden or self.heads * self.dim


STEPS = {
    "lightonocr-1b": Step(64, 16, 8, 128, context=2750),
    "qwen2.5-vl-3b-640x360": Step(32, 16, 2, 128, context=590),
    "qwen2.5-vl-3b-1920x1080": Step(32, 16, 2, 128, context=2760),
    "granite-docling": Step(64, 9, 3, 64, context=1500),
    "llava-1.5-7b": Step(32, 32, 32, 128, context=672),
    "bart-large-cnn": Step(128, 16, 16, 64, context=64),
    "bart-large-cnn-cross": Step(128, 16, 16, 64, context=350, is_cross=True),
    "nougat-base-cross": Step(128, 16, 16, 64, context=588, is_cross=True),
    "flan-t5-xl": Step(128, 32, 32, 64, context=64, far=128),
    "flan-t5-xl-cross": Step(128, 32, 32, 64, context=350, is_cross=True),
    "t5-3b-cross": Step(128, 32, 32, 128, context=350, is_cross=True, hidden=1024),
    "t5-small": Step(128, 8, 8, 64, context=32, far=128),
    "t5-small-cross": Step(128, 8, 8, 64, context=64, is_cross=True),
}


class Layers:
    """Random keys and values of several layers, and rows that attend to them."""

    def __init__(self, step: Step, kept: torch.dtype):
        blocks = step.rows * (step.context // BLOCK + 1)
        size = {"heads": step.kv_heads, "block_size": BLOCK, "head_dim": step.dim}
        each = 2 * blocks * BLOCK * step.kv_heads * step.dim * kept.itemsize
        self.caches = [_cache(blocks, size, kept) for _ in range(max(1, min(LAYERS, CACHE_BYTES // each)))]
        self.tables = torch.randperm(blocks, device=DEVICE, dtype=torch.int32).view(step.rows, -1)
        self.slots = torch.arange(step.rows, device=DEVICE, dtype=torch.int32)
        self.lengths = torch.full((step.rows,), step.context, device=DEVICE, dtype=torch.int32)
        row = torch.randn(step.rows, step.heads + 2 * step.kv_heads, step.dim, device=DEVICE, dtype=DTYPE)
        self.q, self.k, self.v = row.split((step.heads, step.kv_heads, step.kv_heads), 1)
        angle = torch.rand(step.rows, step.dim // 2, device=DEVICE)
        self.angles = None if step.far else torch.stack((angle.cos(), angle.sin()), 1)
        self.bias = torch.randn(step.heads, 2 * step.far + 1, device=DEVICE) if step.far else None
        self.is_cross = step.is_cross

    @torch.inference_mode()
    def run(self) -> Tensor:
        new, scale = NewTokens(self.k, self.v, self.lengths - 1, self.angles), self.q.shape[2] ** -0.5
        q = self.q
        for layer in range(LAYERS):
            where = (self.caches[layer % len(self.caches)], self.tables, self.slots, self.lengths, scale)
            q = paged_attention(q, *where) if self.is_cross else step_attention(q, new, *where, self.bias)
        return q


class HiddenLayers:
    """Random hidden rows, which all layers share, and weights of theirs."""

    def __init__(self, step: Step):
        blocks, width = step.rows * (step.context // BLOCK + 1), step.width
        self.q = torch.randn(step.rows, step.heads, step.dim, device=DEVICE, dtype=DTYPE)
        self.weights = torch.randn(LAYERS, 2 * step.heads * step.dim, width, device=DEVICE, dtype=DTYPE) * width**-0.5
        tables = torch.randperm(blocks, device=DEVICE, dtype=torch.int32).view(step.rows, -1)
        slots = torch.arange(step.rows, device=DEVICE, dtype=torch.int32)
        lengths = torch.full((step.rows,), step.context, device=DEVICE, dtype=torch.int32)
        self.hidden = HiddenRows(torch.randn(blocks, BLOCK, width, device=DEVICE, dtype=DTYPE), tables, slots, lengths)

    @torch.inference_mode()
    def run(self) -> Tensor:
        q = self.q
        for weight in self.weights:
            q = absorbed_attention(q, weight, None, self.hidden, q.shape[2] ** -0.5)
        return q


def _cache(blocks: int, size: dict[str, int], kept: torch.dtype) -> PagedKV:
    kv = KVCache.zeros(range(1), blocks, **size, dtype=kept, device=DEVICE).layer(0)
    for part in (kv.keys, kv.values):
        part.copy_(torch.randn(part.shape, device=DEVICE, dtype=DTYPE).mul_(20 if kept == torch.int8 else 1))
    for scales in (kv.key_scales, kv.value_scales):
        if scales is not None:
            scales.fill_(0.05)
    return kv


def microseconds(layers: Layers | HiddenLayers) -> float:
    """Returns the median time of a layer."""
    layers.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers.run()
    times = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / REPLAYS / LAYERS)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=list(STEPS), metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--kv-cache-dtype", nargs="+", default=list(CACHE_TYPES), choices=list(CACHE_TYPES))
    options = parser.parse_args()
    fits = attend_group.fits
    for name, kept in itertools.product(options.steps, options.kv_cache_dtype):
        step, dtype = STEPS[name], CACHE_TYPES[kept]
        layers = Layers(step, dtype)
        size = 2 * step.rows * step.context * step.kv_heads * step.dim * dtype.itemsize
        for kernel in ("clusters", "triton"):
            attend_group.fits = fits if kernel == "clusters" else lambda *_: False
            time = microseconds(layers)
            report(name, kept, kernel, time, size)
        attend_group.fits = fits
        kind = (step.heads, step.dim, step.width, DTYPE, DEVICE)
        if step.is_cross and dtype == DTYPE and absorbed.fits(*kind, block_size=BLOCK):
            hidden = 2 * step.rows * step.context * step.width
            report(name, kept, "absorbed", microseconds(HiddenLayers(step)), hidden)


def report(step: str, kept: str, kernel: str, time: float, size: int) -> None:
    print(f"{step:26} {kept:7} {kernel:9} {time:8.1f} us a layer {size / time / 1e6:6.2f} TB/s", flush=True)


if __name__ == "__main__":
    main()
