"""Times the operations of a layer of towers that take patches, by themselves, in CUDA graphs: for who changes kernels.

    python benchmarks/encoders.py                  one page or screen of each tower
    python benchmarks/encoders.py qwen2.5-vl-3b --images 4

Weights are random. What it prints, microseconds of one operation and its TFLOP/s, is for comparing two states of the
kernels in one run of a machine; figures of models come from `vlm bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from layers import DEVICE, microseconds
from torch import Tensor

from vlm.ops.activation import Activation
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


def _random(*size: int) -> Tensor:
    return torch.randn(*size, device=DEVICE).to(DTYPE)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("towers", nargs="*", metavar="tower", help=", ".join(TOWERS))
    parser.add_argument("--images", type=int, default=1)
    arguments = parser.parse_args()
    for tower_name in arguments.towers or TOWERS:
        tower = TOWERS[tower_name]
        for part in (products(tower, arguments.images * tower.patches), attention(tower, arguments.images)):
            for name, operations, call in part:
                torch.cuda.synchronize()  # it is timed on a stream of its own
                took = microseconds(call)
                speed = f"{operations / took / 1e6:6.0f} TFLOP/s" if operations else ""
                print(f"{tower_name:14} {name:10} {took:8.1f} µs {speed}", flush=True)


if __name__ == "__main__":
    main()
