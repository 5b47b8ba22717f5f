"""Folders of adapters as PEFT writes them, made without it; a layer of three parts that has adapters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vlm.layers.adapters.base import AdapterRoom
from vlm.layers.adapters.lora import LoraWeights
from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.linear import Linear
from vlm.layers.metadata.base import AttentionMetadata
from vlm.layers.quant.int8 import Int8
from vlm.parallel.mapping import Mapping as Ranks
from vlm.requests.adapters import NO_ADAPTER

PARTS = {"q": 6, "k": 4, "v": 4}
KIND = {"device": torch.device("cpu"), "dtype": torch.float32}
IDS = [1, NO_ADAPTER, 0, 2, 2, NO_ADAPTER, 1]
Q, K = (f"model.layers.0.self_attn.{name}_proj" for name in "qk")  # of a LLaMA


def adapter_folder(path: Path, tensors: Mapping[str, Tensor], **config) -> Path:
    """A folder with these tensors, of rank 2 unless the configuration says otherwise."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 8, **config}))
    save_file(dict(tensors), path / "adapter_model.safetensors")
    return path


def matrices(a: Tensor, b: Tensor, module: str = Q) -> dict[str, Tensor]:
    """The tensors of one module."""
    return {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}


def random_adapter(path: Path, *modules: str, seed: int, width: int = 32) -> Path:
    """An adapter that changes square layers by a lot."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    tensors: dict[str, Tensor] = {}
    for module in modules:
        tensors |= matrices(draw(2, width), draw(width, 2), module)
    return adapter_folder(path, tensors)


def scales(values: Tensor, module: str = K) -> dict[str, Tensor]:
    """The tensors of one module of an IA3: of its outputs [out, 1], of its inputs [1, in]."""
    return {f"base_model.model.{module}.ia3_l": values}


def random_ia3(path: Path, *modules: str, seed: int, width: int = 32) -> Path:
    """An IA3 that scales the outputs of layers by a lot."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for module in modules:
        tensors |= scales(torch.randn(width, 1, generator=generator), module)
    return adapter_folder(path, tensors, peft_type="IA3")


def batch_of(ids: list[int]) -> ForwardBatch:
    return ForwardBatch(torch.arange(len(ids)), AttentionMetadata(), adapter_ids=torch.tensor(ids, dtype=torch.int32))


def layer_of(axis=None, tp=1, rank=0, *, width=8) -> nn.Sequential:
    """A network of one layer, alike on every rank."""
    context = ModelContext(Ranks(tp, rank=rank), adapters=AdapterRoom(max_loras=3, max_rank=5))
    linear = Linear(width, PARTS, context=context, axis=axis, units=dict.fromkeys((*PARTS, "in"), 2))
    torch.manual_seed(0)
    weight, bias = torch.randn(sum(PARTS.values()), width), torch.randn(sum(PARTS.values()))
    rows = torch.cat([torch.arange(14)[place] for place in linear.rows])
    linear.weight, linear.bias = nn.Parameter(weight[rows][:, linear.columns]), nn.Parameter(bias[rows])
    return nn.Sequential(linear).requires_grad_(False)


def weights_of(rank: int, *parts: str, width=8, seed=0) -> LoraWeights:
    """What an adapter adds to some of the parts."""
    torch.manual_seed(seed)
    a, b = torch.randn(rank, width), torch.randn(14, rank)
    kept = torch.cat([torch.full((size,), float(name in parts)) for name, size in PARTS.items()])
    return LoraWeights(a, b * kept[:, None])


def quantize(linear: Linear) -> None:
    """Keeps a layer's weight in int8."""
    method = Int8()
    kept = method.quantize(linear.weight)
    linear.keep(method)
    for name, values in kept.items():
        setattr(linear, name, nn.Parameter(values, requires_grad=False))


def check_ranks(axis: str, put_all: Callable[[nn.Module], nn.Module], x: Tensor, want: Tensor) -> None:
    """Compares what two ranks compute of `x` with what one does. `put_all` gives a network its adapters."""
    found = []
    for rank in range(2):
        [linear] = put_all(layer_of(axis, 2, rank))
        bias = linear.bias if axis == "column" or rank == 0 else None
        found.append((linear, linear.adapted(x[:, linear.columns], bias, batch_of(IDS))))
    if axis == "row":
        torch.testing.assert_close(sum(y for _, y in found), want)
        return
    for linear, y in found:
        rows = torch.cat([torch.arange(14)[place] for place in linear.rows])
        torch.testing.assert_close(y, want[:, rows])
