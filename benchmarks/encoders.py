"""Times the operations of a layer of towers that take patches, and the attention of encoders of texts, by themselves,
in CUDA graphs: for who changes kernels.

    python benchmarks/encoders.py                  one page or screen of each tower, 128 texts
    python benchmarks/encoders.py qwen2.5-vl-3b --images 4

Of attention with a bias by distance, the kernel of other GPUs runs beside that of compute capability 9.0. Weights are
random. What it prints, microseconds of one operation and its TFLOP/s, is for comparing two states of the kernels in one
run of a machine; figures of models come from `vlm bench`.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from layers import DEVICE, microseconds
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels import packed_bias
from vlm.ops.linear import linear
from vlm.ops.packed_attention import packed_attention, tiles_of
from vlm.ops.rotary import rotary

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
    """The heads of an encoder whose scores have a bias by distance, and what it is given."""

    texts: int
    lengths: tuple[int, int]  # the shortest, the longest
    heads: int
    head_dim: int
    most: int  # the distance from which on biases are one


TEXT_ENCODERS = {"flan-t5-xl": TextEncoder(128, (260, 440), 32, 64, most=128)}
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
        tiles = torch.tensor(tiles_of(each), dtype=torch.int32, device=DEVICE)
        pairs = sum(n * n for n in each)
        yield name, 4 * pairs * tower.width, lambda t=tiles: packed_attention(q, k, v, t, dim**-0.5)
    yield "angles", 0, lambda: rotary(qkv[:, : 2 * tower.heads], angles)


def biased_attention(encoder: TextEncoder) -> Iterator[Operation]:
    """Yields attention within texts, by each of its kernels."""
    draw, dim = random.Random(0), encoder.head_dim
    lengths = [draw.randint(*encoder.lengths) for _ in range(encoder.texts)]
    q, k, v = _random(sum(lengths), 3 * encoder.heads, dim).chunk(3, 1)
    bias = torch.randn(encoder.heads, 2 * encoder.most + 1, device=DEVICE)
    tiles = torch.tensor(tiles_of(lengths), dtype=torch.int32, device=DEVICE)
    operations, fits = 4 * sum(n * n for n in lengths) * encoder.heads * dim, packed_bias.fits
    for kernel in ("cuda", "triton"):
        packed_bias.fits = fits if kernel == "cuda" else lambda *_: False
        yield kernel, operations, lambda: packed_attention(q, k, v, tiles, dim**-0.5, bias)
    packed_bias.fits = fits


def _random(*size: int) -> Tensor:
    return torch.randn(*size, device=DEVICE).to(DTYPE)


def operations_of(encoder: str, images: int) -> Iterator[Operation]:
    if encoder in TEXT_ENCODERS:
        return biased_attention(TEXT_ENCODERS[encoder])
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
            print(f"{encoder:14} {name:10} {took:8.1f} µs {speed}", flush=True)


if __name__ == "__main__":
    main()
