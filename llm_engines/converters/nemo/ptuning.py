"""NeMo's p-tuning of a GPT as PEFT (`peft_scheme: ptuning`) -> a folder of tuned prompts, of one task.

NVIDIA NeMo, parallel_adapters.py (PromptEncoderAdapter), mcore_mixins.py and gpt_sft_dataset.py: two layers make the
rows, which take the place of as many tokens before the text, their positions' embeddings included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from llm_engines.converters.nemo.weights import Stage, weight_files
from vlm.artifacts.prompt_tables import NOT_FINITE, PromptTables, TunedPrompt, write_tables
from vlm.errors import CheckpointError, ConfigError, shown

SCHEME = TASK = "ptuning"
MOST_VALUES = 2**26  # that the layers make: 4,096 rows of 16,384; published ones have some 100
PART = re.compile(r".*\badapter_layer\.ptuning_adapter\.(.+)")
LAYERS = ("embedding.weight", "first.weight", "first.bias", "second.weight", "second.bias")
# what the layers made of it, in releases that keep that, too; the longer name is FasterTransformer's
TABLES = ("inference_table", "inference_table.prompt_table.taskname.prompt_embeddings.weight")


def is_here(config: Mapping[str, Any]) -> bool:
    """Says whether a configuration is of prompts that were tuned so beside a GPT."""
    return _part(config, "peft").get("peft_scheme") == SCHEME and "GPT" in str(config.get("target", "GPT"))


def convert(folder: Path, config: Mapping[str, Any], out: Path) -> PromptTables:
    """Writes the rows of an archive's content into a folder at `out`. Raises CheckpointError for what is missing,
    damaged or unsafe, ConfigError for rows that cannot be used as they were tuned."""
    _check(folder, config)
    rows = _rows(folder)
    count = _part(_part(config, "peft"), "p_tuning").get("virtual_tokens")
    if count not in (None, len(rows)):
        raise CheckpointError(f"{folder} holds {len(rows)} rows of tuned prompts, its virtual_tokens is {count}.")
    template = str(_part(_part(config, "data"), "train_ds").get("prompt_template") or "")
    base = str(config.get("restore_from_path") or "")
    return write_tables(out, base, [TunedPrompt(rows.numpy(), TASK, template)])


def _check(folder: Path, config: Mapping[str, Any]) -> None:
    texts, errors = _part(_part(config, "data"), "train_ds"), []
    if (kind := config.get("position_embedding_type", "learned_absolute")) == "learned_absolute":
        errors.append(f"position_embedding_type is {shown(kind)}, which here is added to the rows, too")
    if config.get("apply_embedding_scaling"):
        errors.append("apply_embedding_scaling is True, which here is of tokens alone")
    errors += [f"data.train_ds.{name} is True" for name in ("add_bos", "add_sep") if texts.get(name) is True]
    if errors:
        raise ConfigError(
            f"the tuned prompts of {folder} cannot be used exactly as NeMo has them: {'; '.join(errors)}. Run them with"
            " NeMo."
        )


def _rows(folder: Path) -> Tensor:
    """Returns what the layers make of their embedding, as NeMo does when it answers; else what they once made."""
    state = Stage(folder, weight_files(folder)[0], lambda name: 1)  # later stages of a pipeline have nothing
    named = {match[1]: state[name] for name in state if (match := PART.fullmatch(name))}
    parts = {name: x.float() for name, x in named.items() if x.is_floating_point()}
    if all(name in parts for name in LAYERS):
        embedding, *layers = (parts[name] for name in LAYERS)
        rows = _made(folder, embedding, *layers)
    else:
        rows = next((parts[name] for name in TABLES if name in parts and parts[name].any()), None)
    if rows is None or rows.ndim != 2 or not rows.numel():
        raise CheckpointError(
            f"{folder} holds no rows of tuned prompts (ptuning_adapter); give the .nemo file that NeMo wrote at the end"
            " of the tuning."
        )
    if not rows.isfinite().all():
        raise CheckpointError(f"{folder} holds {NOT_FINITE}.")
    return rows


def _made(folder: Path, embedding: Tensor, *layers: Tensor) -> Tensor:
    first, first_bias, second, second_bias = layers
    count, width = embedding.shape[:-1].numel(), max(first.shape[:-1].numel(), second.shape[:-1].numel())
    if count * width > MOST_VALUES:  # thin layers of a small file may make any number of them
        raise CheckpointError(
            f"{folder} would make {count:,} rows of up to {width:,} values; at most {MOST_VALUES:,} values are made:"
            " fetch it again."
        )
    try:
        inner = F.gelu(torch.addmm(first_bias, embedding, first.t()), approximate="tanh")
        return torch.addmm(second_bias, inner, second.t())
    except RuntimeError:
        shapes = ", ".join(str(list(x.shape)) for x in (embedding, *layers))
        raise CheckpointError(f"{folder}: the layers that make the rows do not fit each other ({shapes}).") from None


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}
