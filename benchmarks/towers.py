"""Times passes of whole visual networks, in CUDA graphs: for who changes their layers or how many images a pass has.

    python benchmarks/towers.py                                 all of them, 1, 8 and 32 images
    python benchmarks/towers.py blip2-flan-t5-xl --images 32 --kernels 12
    python benchmarks/towers.py trocr-base --images 1 --cpu     does it run?

Weights are random, images of the usual size. TFLOP/s are those of the network's products, convolutions and attention as
torch counts them. What it prints is for comparing two states of a network in one run of a machine; figures of models
come from `vlm bench`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from layers import microseconds
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vlm.convert.roles import role_configs
from vlm.registry.catalogs import architecture, model_spec
from vlm_app.bench.timing.kernels import kernels_of

TOWERS = (
    "blip2-flan-t5-xl",
    "llava-1.5-7b",
    "vila-1.5-3b",
    "trocr-base",
    "nougat-base",
    "donut-base",
    "florence-2-base",
)


def tower(arch: str, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, Tensor, float]:
    """Returns the visual network of a published shape with random weights, an image [1, C, H, W], and the operations
    that the network takes for it."""
    spec, hf = architecture(arch)
    config = role_configs(spec, hf).visual
    assert config is not None, arch
    network = model_spec(spec.roles["visual"].model).skeleton(config).requires_grad_(False).eval()
    image = torch.empty(1, config.num_channels, *config.image_size, device="meta")
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        init_buffers(network, image.device)
        network(image)
    network = network.to_empty(device=device).to(dtype)
    for name, values in network.state_dict().items():
        values.fill_(1.0) if values.ndim == 1 and name.endswith("weight") else values.normal_(std=0.02)
    init_buffers(network, device)
    return network, torch.randn(image.shape, device=device, dtype=dtype), counter.get_total_flops()


def init_buffers(network: Any, device: torch.device) -> None:
    if hasattr(network, "init_buffers"):
        network.init_buffers(device)


def milliseconds(run: Callable[[], Any], device: torch.device) -> float:
    """Returns how long a pass takes: on a GPU the median of a graph's."""
    if device.type == "cuda":
        return microseconds(run) / 1e3
    began = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - began)


def print_kernels(run: Callable[[], Any], device: torch.device, most: int) -> None:
    """Prints the kernels that take longest in a pass."""
    found = kernels_of(run, lambda: None, 1, device)["first_token_kernels"]
    for kernel in found["longest"][:most]:
        print(f"    {kernel['busy_microseconds']:9.1f} µs {kernel['count']:5g} x {kernel['name']}")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("towers", nargs="*", default=TOWERS, help="published shapes")
    parser.add_argument("--images", nargs="*", type=int, default=[1, 8, 32], help="of a pass")
    parser.add_argument("--kernels", type=int, default=0, help="of the longest so many are listed")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    device, dtype = torch.device("cpu" if args.cpu else "cuda"), getattr(torch, args.dtype)
    for arch in args.towers:
        network, image, operations = tower(arch, device, dtype)
        for count in args.images:
            images = image.repeat(count, 1, 1, 1)
            run = lambda images=images, network=network: network(images)  # noqa: E731
            took = milliseconds(run, device)
            rate = count * operations / took / 1e9
            print(
                f"{arch:18} {count:3} images {took:9.3f} ms {took / count:8.3f} an image {rate:7.1f} TFLOP/s",
                flush=True,
            )
            if args.kernels:
                print_kernels(run, device, args.kernels)
        del network


if __name__ == "__main__":
    main()
