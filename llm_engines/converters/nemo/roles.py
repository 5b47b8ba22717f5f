"""The tensors of a NeMo model -> the weights of its networks, each under rules of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from llm_engines.converters.nemo.archive import CONFIG
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import TensorSource
from vlm.config import Config
from vlm.convert.conversion import apply_rules
from vlm.convert.roles import module_layout
from vlm.errors import CheckpointError
from vlm.registry.catalogs import model_spec

BY_TOKEN = re.compile(r".*\.(word_embeddings|output_layer|tokens_head)\.(weight|bias)")


@dataclass(frozen=True)
class Network:
    """A network and what its weights are made of."""

    model: str  # a ModelRef's name
    config: Config
    tensors: Mapping[str, Tensor]
    rules: list[Any]


def converted(networks: Mapping[str, Network], folder: Path) -> dict[str, RoleWeights]:
    """Returns the weights of each role. Raises CheckpointError with every reason why they do not fit."""
    reasons, roles = [], {}
    for role, network in networks.items():
        layout = module_layout(model_spec(network.model), network.config)
        outcome = apply_rules(network.tensors, network.rules, {name: shape for name, (_, shape) in layout.items()})
        reasons += outcome.reasons
        source = TensorSource.from_tensors(outcome.tensors)
        roles[role] = RoleWeights(network.model, network.config.to_dict(), source)
    if reasons:
        raise CheckpointError(f"the weights in {folder} do not fit its {CONFIG}: {'; '.join(reasons)}.")
    return roles


def known_rows(tensors: Mapping[str, Tensor], embedding: str, size: int, folder: Path) -> dict[str, Tensor]:
    """Returns the tensors without the rows that pad a vocabulary (`make_vocab_size_divisible_by`, by the ranks): NeMo
    never draws such an id. Raises CheckpointError where there are fewer than the tokenizer has ids."""
    if embedding not in tensors:
        raise CheckpointError(f"the weights in {folder} lack {embedding}.")
    if (rows := len(tensors[embedding])) < size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {size} ids, the embedding {rows} rows; they must be of one training."
        )
    return {name: x[:size] if BY_TOKEN.fullmatch(name) else x for name, x in tensors.items()}
