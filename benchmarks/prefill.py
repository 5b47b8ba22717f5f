"""Times attention of prompts over the paged cache, by itself, in CUDA graphs: a tool for who changes its kernel.

    python benchmarks/prefill.py                                   32 prompts of each model, in each kind of cache
    python benchmarks/prefill.py qwen2.5-vl-3b --kv-cache-dtype fp8
    python benchmarks/prefill.py --kernels cuda --keys 64 128 --turns --each 1 2 4    in which way is the work shared?
    TRITON_INTERPRET=1 python benchmarks/prefill.py --cpu --prompts 2 --tokens 90    does it run?

Values are random. What it prints, microseconds of a layer over all passes and TFLOP/s, keys that a row does not see not
counted, is for comparing kernels, or two states of one, in one run of a machine; figures of models come from `vlm
bench`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from layers import BLOCK, CACHE_TYPES, microseconds
from torch import Tensor

from vlm.ops.attention.prefill_attention import tiles_of
from vlm.ops.attention_variant import PLAIN
from vlm.ops.kernels import prefill_flash
from vlm.ops.kernels.prefill_attention import prefill_attention
from vlm.ops.layouts.paged_kv import MOST, PagedKV, quantized

PASS = 8192  # tokens, as the scheduler has them: a prompt is cut where one ends
Chunk = tuple[int, int, int]  # its prompt, its first position, its tokens


@dataclass(frozen=True)
class Model:
    """The sizes of a decoder's attention, and the tokens of a prompt."""

    heads: int
    kv_heads: int
    head_dim: int
    tokens: int


MODELS = {
    "qwen2.5-vl-3b": Model(16, 2, 128, tokens=2700),  # 1920x1080
    "lightonocr-1b": Model(16, 8, 128, tokens=2350),  # 1190x1540
    "llava-1.5-7b": Model(32, 32, 128, tokens=608),
}


def passes(prompts: int, tokens: int) -> list[list[Chunk]]:
    """Cuts prompts into passes."""
    result: list[list[Chunk]] = [[]]
    room = PASS
    for prompt in range(prompts):
        position = 0
        while position < tokens:
            if not room:
                result, room = [*result, []], PASS
            count = min(room, tokens - position)
            result[-1].append((prompt, position, count))
            position, room = position + count, room - count
    return result


def cache(model: Model, blocks: int, dtype: torch.dtype, device: torch.device) -> PagedKV:
    """Returns blocks of random keys and values."""
    size = (blocks, model.kv_heads, BLOCK, model.head_dim)
    keys, values = (torch.randn(size, device=device) for _ in range(2))
    if dtype not in CACHE_TYPES.values():
        return PagedKV(keys.to(dtype), values.to(dtype))
    (keys, key_scales), (values, value_scales) = quantized(keys, dtype), quantized(values, dtype)
    return PagedKV(keys, values, key_scales, value_scales)


@dataclass(frozen=True)
class Passes:
    """Prompts of a model, whose blocks lie anywhere, and how they are cut."""

    q: Tensor
    kv: PagedKV
    tables: Tensor
    tiles: list[Tensor]

    def run(self) -> Tensor:
        """Attends in all passes."""
        scale = self.q.shape[2] ** -0.5
        return [prefill_attention(self.q, self.kv, self.tables, tiles, scale, None) for tiles in self.tiles][-1]

    @property
    def fits(self) -> bool:
        """Tells whether the kernel of this GPU takes them."""
        return prefill_flash.fits(self.q, self.kv, self.tiles[0], None, PLAIN)


def passes_of(model: Model, prompts: int, tokens: int, kept: torch.dtype | None, device: torch.device) -> Passes:
    """Returns random prompts."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    columns = -(-tokens // BLOCK)
    tables = torch.randperm(prompts * columns, device=device).int().view(prompts, columns)
    kv = cache(model, prompts * columns, kept or dtype, device)
    rows = min(PASS, prompts * tokens)
    q = torch.randn(rows, model.heads + 2 * model.kv_heads, model.head_dim, device=device).to(dtype)[:, : model.heads]
    tiles = [torch.tensor(tiles_of(each), dtype=torch.int32, device=device) for each in passes(prompts, tokens)]
    return Passes(q, kv, tables, tiles)


def _always(number: int) -> Callable[..., int]:
    return lambda *_: number


def kernels(each: Passes, arguments: argparse.Namespace) -> Iterator[str]:
    """Yields the name of each kernel while it is the one that runs: Triton's, and those of this GPU's own, whose work
    is shared as the arguments say."""
    taken, shapes = prefill_flash.fits, prefill_flash.SHAPES.copy()
    if "triton" in arguments.kernels or not each.fits:
        prefill_flash.fits = lambda *_: False
        yield "triton"
        prefill_flash.fits = taken
    if "cuda" not in arguments.kernels or not each.fits:
        return
    place = each.q.shape[2], each.kv.keys.dtype in MOST
    usual = shapes[place]
    variants = itertools.product(
        arguments.keys or [usual.keys], (False, True) if arguments.turns else (usual.turns,), arguments.each or [None]
    )
    heads_each = prefill_flash.heads_each
    for keys, turns, heads in variants:
        # as many bytes of stages as usual
        shape = usual._replace(keys=keys, stages=max(2, usual.stages * usual.keys // keys), turns=turns)
        prefill_flash.SHAPES[place] = shape
        prefill_flash.heads_each = heads_each if heads is None else _always(heads)
        yield f"cuda, {keys} keys{', in turn' if turns else ''}{f', {heads} each' if heads else ''}"
    prefill_flash.SHAPES.update(shapes)
    prefill_flash.heads_each = heads_each


def _microseconds_of_one(run: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e6


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, help="of a prompt")
    parser.add_argument("--kv-cache-dtype", nargs="*", default=["auto", "fp8"], choices=["auto", *CACHE_TYPES])
    parser.add_argument("--kernels", nargs="*", default=["triton", "cuda"], choices=["triton", "cuda"])
    parser.add_argument("--keys", nargs="*", type=int, choices=[64, 128], help="of a step of the CUDA kernel")
    parser.add_argument("--each", nargs="*", type=int, help="heads, or pairs of them, of a program of the CUDA kernel")
    parser.add_argument("--turns", action="store_true", help="the CUDA kernel without and with turns of its groups")
    parser.add_argument("--cpu", action="store_true", help="run once, without a GPU")
    arguments = parser.parse_args()
    device = torch.device("cpu" if arguments.cpu else "cuda")
    for name, kept in itertools.product(arguments.models or MODELS, arguments.kv_cache_dtype):
        model = MODELS[name]
        tokens = arguments.tokens or model.tokens
        each = passes_of(model, arguments.prompts, tokens, CACHE_TYPES.get(kept), device)
        if not arguments.cpu:
            torch.cuda.synchronize()  # it is timed on a stream of its own
        for kernel in kernels(each, arguments):
            took = _microseconds_of_one(each.run) if arguments.cpu else microseconds(each.run)
            pairs = arguments.prompts * tokens * (tokens + 1) // 2
            speed = 4 * pairs * model.heads * model.head_dim / took / 1e6
            print(f"{name:14} {kept:5} {kernel:28} {took:9.1f} µs {speed:6.1f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
