"""Times the operations of a layer of towers that take patches, and the attention of encoders of texts, by themselves,
in CUDA graphs: for who changes kernels.

    python benchmarks/encoders.py                  one page or screen of each tower, 128 texts
    python benchmarks/encoders.py qwen2.5-vl-3b --images 4

Of attention that compute capability 9.0 has a kernel of its own for, that of other GPUs runs beside it. Weights are
random. What it prints, microseconds of one operation and its TFLOP/s, is for comparing two states of the kernels in one
run of a machine; figures of models come from `vlm bench`.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from layers import DEVICE, microseconds
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.attention.packed_attention import packed_attention, tiles_of
from vlm.ops.attention.rotary import rotary
from vlm.ops.attention_variant import PLAIN
from vlm.ops.kernels import packed_flash
from vlm.ops.products.linear import linear

DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Tower:
    """The sizes of a tower's layer, and what it is given."""

    patches: int  # of an image
    width: int
    ffn: int
    heads: int
    window: int | None = None  # patches of one

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


TOWERS = {
    "lightonocr-1b": Tower(9350, 1024, 4096, 16),  # 1190x1540
    "qwen2.5-vl-3b": Tower(10764, 1280, 3420, 16, window=64),  # 1920x1080
}


@dataclass(frozen=True)
class TextEncoder:
    """The heads of an encoder, and what it is given."""

    texts: int
    lengths: tuple[int, int]  # the shortest, the longest
    heads: int
    head_dim: int
    most: int | None = None  # the distance from which on biases are one, where scores have a bias by it


TEXT_ENCODERS = {
    "flan-t5-xl": TextEncoder(128, (260, 440), 32, 64, most=128),
    "bart-large-cnn": TextEncoder(128, (260, 440), 16, 64),
}
Operation = tuple[str, int, Callable[[], Tensor]]  # its name, its floating point operations, a call of it


def products(tower: Tower, rows: int) -> Iterator[Operation]:
    """Yields the layer's products, the first of the feed-forward layer with its activation."""
    up = Activation("silu", gated=True)
    sizes = {
        "qkv": (3 * tower.width, tower.width, None),
        "out": (tower.width, tower.width, None),
        "up": (2 * tower.ffn, tower.width, up),
        "down": (tower.width, tower.ffn, None),
    }
    for name, (outputs, inputs, activation) in sizes.items():
        x, weight = _random(rows, inputs), _random(outputs, inputs)
        yield name, 2 * rows * outputs * inputs, lambda x=x, w=weight, a=activation: linear(x, w, activation=a)


def attention(tower: Tower, images: int) -> Iterator[Operation]:
    """Yields attention within images, within windows where there are some, and the turning ahead of both."""
    rows, dim = images * tower.patches, tower.head_dim
    qkv, angles = _random(rows, 3 * tower.heads, dim), _random(rows, 2, dim // 2).float()
    q, k, v = qkv.chunk(3, 1)
    lengths = {"attention": [tower.patches] * images}
    if tower.window is not None:
        whole, rest = divmod(rows, tower.window)
        lengths["windows"] = [tower.window] * whole + [rest] * (rest > 0)
    for name, each in lengths.items():
        yield from attention_of(name, each, (q, k, v), None)
    yield "angles", 0, lambda: rotary(qkv[:, : 2 * tower.heads], angles)


def text_attention(encoder: TextEncoder) -> Iterator[Operation]:
    """Yields attention within texts."""
    draw, dim = random.Random(0), encoder.head_dim
    lengths = [draw.randint(*encoder.lengths) for _ in range(encoder.texts)]
    q, k, v = _random(sum(lengths), 3 * encoder.heads, dim).chunk(3, 1)
    bias = None if encoder.most is None else torch.randn(encoder.heads, 2 * encoder.most + 1, device=DEVICE)
    yield from attention_of("attention", lengths, (q, k, v), bias)


def attention_of(name: str, lengths: list[int], rows: Sequence[Tensor], bias: Tensor | None) -> Iterator[Operation]:
    """Yields attention within sequences: by the kernel of this GPU and, where it has one of its own, by Triton's."""
    q, k, v = rows
    tiles = torch.tensor(tiles_of(lengths), dtype=torch.int32, device=DEVICE)
    operations, fits = 4 * sum(n * n for n in lengths) * q.shape[1] * q.shape[2], packed_flash.fits

    def call() -> Tensor:
        return packed_attention(q, k, v, tiles, q.shape[2] ** -0.5, bias)

    if not fits(q, k, v, bias, PLAIN):
        yield name, operations, call
        return
    yield f"{name}, cuda", operations, call
    packed_flash.fits = lambda *_: False
    yield f"{name}, triton", operations, call
    packed_flash.fits = fits


def _random(*size: int) -> Tensor:
    return torch.randn(*size, device=DEVICE).to(DTYPE)


def operations_of(encoder: str, images: int) -> Iterator[Operation]:
    if encoder in TEXT_ENCODERS:
        return text_attention(TEXT_ENCODERS[encoder])
    tower = TOWERS[encoder]
    return itertools.chain(products(tower, images * tower.patches), attention(tower, images))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*TOWERS, *TEXT_ENCODERS]
    parser.add_argument("encoders", nargs="*", default=names, metavar="encoder", help=", ".join(names))
    parser.add_argument("--images", type=int, default=1)
    arguments = parser.parse_args()
    for encoder in arguments.encoders:
        for name, operations, call in operations_of(encoder, arguments.images):
            torch.cuda.synchronize()  # it is timed on a stream of its own
            took = microseconds(call)
            speed = f"{operations / took / 1e6:6.0f} TFLOP/s" if operations else ""
            print(f"{encoder:14} {name:17} {took:8.1f} µs {speed}", flush=True)


if __name__ == "__main__":
    main()
