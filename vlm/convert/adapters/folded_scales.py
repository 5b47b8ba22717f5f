"""What an adapter changes -> whether scales that a quantization has folded into the layers before are in its way.

A folded scale multiplies the norm, or the rows of a product, that a layer's inputs come from, and divides its weight:
the network stays as it is, but matrices that were trained beside the dense one meet other values in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.errors import InputError, VlmWarning, listed
from vlm.layers.adapters.base import AdapterWeights, Layers
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.inputs import QuantizedMethod
from vlm.layers.quant.methods import quantization_of
from vlm.layers.quant.producer import FOLDED, producers_of
from vlm.registry.catalogs import model_spec
from vlm.registry.role_configs import RoleConfigs

ALL = slice(None)


def check_scales(adapter: Mapping[str, Layers], folder: Path, engine: EngineDir, configs: RoleConfigs) -> None:
    """Raises InputError for an adapter that adds to layers whose inputs or outputs `vlm quantize` has scaled. Warns
    where another program may have: the adapter may have been trained beside its weights, and fits them then."""
    if (folded := engine.manifest.quantization_options.get(FOLDED)) is None:
        return
    names = {
        f"{role}.{path}": None
        for role, layers in adapter.items()
        for path, rows in _scaled_rows(_network(engine, role, configs), role, folded)
        if _adds_to(layers.get(path, ()), rows)
    }
    if not names:
        return
    adds = f"the adapter {folder} adds to {listed(names, 3)}"
    if isinstance(folded, str):
        warnings.warn(
            f"{adds}, and the model comes from a folder ({folded}) in which such layers have scales of others folded"
            " into them: an adapter that was trained beside the unquantized model computes something else here; take"
            " one that was trained beside this folder, or merge it before the model is quantized.",
            VlmWarning, stacklevel=2,
        )  # fmt: skip
        return
    raise InputError(
        f"{adds}, into which vlm quantize has folded scales, so it would compute something else than in its training;"
        " give --scales separate when you quantize, or merge the adapter first: vlm convert --merge-lora."
    )


def _network(engine: EngineDir, role: str, configs: RoleConfigs) -> nn.Module:
    """Returns one whole network, without values."""
    manifest = engine.manifest
    kept = quantization_of(manifest.quantization, manifest.quantization_options).of_role(role)
    return model_spec(engine.roles[role]).skeleton(configs[role], ModelContext(quantization=kept))


def _scaled_rows(network: nn.Module, role: str, folded: Sequence[str] | str) -> Iterator[tuple[str, slice]]:
    """Yields the layers that scales were folded out of, and the rows of those that they were folded into."""
    linears = {path: module for path, module in network.named_modules() if isinstance(module, Linear)}
    for path, producer in producers_of(network).items():
        if _may_be_folded(linears[path]) if isinstance(folded, str) else f"{role}.{path}" in folded:
            yield path, ALL
            if producer.part is not None:
                yield producer.path, linears[producer.path].rows_of(producer.part)


def _may_be_folded(layer: Linear) -> bool:
    return isinstance(layer.method, QuantizedMethod) and not layer.method.inputs.pre_quant_scale


def _adds_to(changes: Sequence[AdapterWeights], rows: slice) -> bool:
    return any(not each.commutes_with_scales and each.part(rows, ALL) is not None for each in changes)
