"""NeMo's GPTs. The network and the rules of its weights are those of `llm_engines.models.gpt2`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_engines.converters.nemo.roles import Network, converted, known_rows
from llm_engines.converters.nemo.tokenizer import TokenizerFiles, read_named_tokens, written
from llm_engines.converters.nemo.weights import read_weights
from vlm.artifacts.native.roles import RoleWeights
from vlm.registry.catalogs import model_spec

FAMILY = MODEL = "gpt2"
EMBEDDING = "model.language_model.embedding.word_embeddings.weight"


def tokenizer_files(folder: Path, config: dict[str, Any], out: Path) -> TokenizerFiles:
    """Writes tokenizer.json and its settings into `out`; NeMo adds no special tokens to a prompt."""
    return written(read_named_tokens(folder, config, out), out)


def roles(folder: Path, config: dict[str, Any], size: int) -> dict[str, RoleWeights]:
    """Returns the decoder of a vocabulary of so many ids. Raises CheckpointError where its weights do not fit,
    ConfigError for what cannot be run exactly."""
    spec = model_spec(MODEL)
    network = spec.parse(config | {"model_type": "nemo_gpt", "vocab_size": size})
    joined = str(config.get("activation")).startswith("fast")  # a gate and what it gates
    whole = read_weights(folder, config, lambda name: 2 if joined and ".dense_h_to_4h." in name else 1)
    tensors = known_rows(whole, EMBEDDING, size, folder)
    network = spec.config_from_weights(network, tensors)
    return converted({"decoder": Network(MODEL, network, tensors, spec.rules(network))}, folder)
