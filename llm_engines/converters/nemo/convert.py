"""NVIDIA NeMo's GPTs and T5s -> our checkpoint. The networks are those of `llm_engines.models.gpt2` and `t5`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from llm_engines.converters.nemo import gpt, ia3, prompts, ptuning, t5
from llm_engines.converters.nemo.archive import CONFIG, DISTRIBUTED, EXPORT, config_of, distributed, opened, read_config
from vlm.artifacts.native.checkpoint import Check, Checkpoint, write_checkpoint
from vlm.artifacts.progress import Progress
from vlm.artifacts.prompt_tables import PromptTables
from vlm.convert.values import invalid_values
from vlm.errors import CheckpointError, ConfigError, listed

KINDS = {"GPT": gpt, "T5": t5, "T0": t5, "BART": t5}  # by a part of the name of the model's class


def convert(
    source: Path,
    out: Path,
    *,
    progress: Progress | None = None,
    check: Check | None = None,
    tuned: bool = False,
) -> Checkpoint | PromptTables | ia3.AdapterFolder:
    """Converts a .nemo archive or its folder to our checkpoint at `out`, written whole or not at all; where it may be
    what was `tuned` beside a model, prompts and scales become a folder of theirs. `check`: see write_checkpoint.

    Raises CheckpointError for what is missing, damaged, unsafe or does not fit, ConfigError that names every field
    which cannot be honoured.
    """
    with opened(source, out) as folder, tempfile.TemporaryDirectory() as scratch:
        config = read_config(folder / CONFIG)
        for beside in (prompts, ptuning, ia3) if tuned else ():
            if beside.is_here(config):
                return beside.convert(folder, config, Path(out))
        kind = KINDS[_kind(folder / CONFIG, config)]
        _check_core(folder, config)
        tokenizer = kind.tokenizer_files(folder, config, Path(scratch))
        return write_checkpoint(
            Path(out),
            family=kind.FAMILY,
            roles=kind.roles(folder, config | tokenizer.ids, tokenizer.size),
            generation=tokenizer.ids,
            source=source.resolve().name,
            processor_files=tokenizer.paths,
            check=check,
            progress=progress,
        )


def beside_model(source: Path) -> str | None:
    """Returns what was tuned beside a model, where an archive or its folder is that; None where it is a model.
    Raises CheckpointError and ConfigError for what is neither."""
    config = config_of(source)
    with invalid_values(source):
        if prompts.is_here(config) or ptuning.is_here(config):
            return "tuned prompts"
        if ia3.is_here(config):
            return "an adapter"
        _kind(source, config)
    return None


def _check_core(folder: Path, config: dict[str, Any]) -> None:
    """Raises CheckpointError for weights that lie in a distributed checkpoint, ConfigError for those of a network of
    Megatron-core's, which have other names."""
    if (folder / DISTRIBUTED).is_dir():
        raise CheckpointError(distributed(folder))
    if core := [name for name in ("mcore_gpt", "mcore_t5") if config.get(name)]:
        raise ConfigError(f"{folder} is a network of Megatron-core's ({core[0]}), which is not read; {EXPORT}.")


def _kind(path: Path, config: dict[str, Any]) -> str:
    """Returns a key of KINDS. Raises ConfigError for another network, and for what was tuned beside a model and does
    not hold the model."""
    base = config.get("language_model_path") or config.get("restore_from_path") or "its base model"
    target = str(config.get("target", "GPT")).rpartition(".")[2]
    if ia3.is_here(config):
        raise ConfigError(
            f"{path} is of (IA)3 alone, which is no model; vlm convert makes a folder of PEFT's of it; give that as an"
            f" adapter, --model being {base}."
        )
    if prompts.is_here(config) or ptuning.is_here(config):
        raise ConfigError(
            f"{path} is of tuned prompts alone (NeMo's prompt learning), which are no model; vlm convert makes a folder"
            f" of them; give that with --prompt-table, --model being {base}."
        )
    peft = config.get("peft")
    scheme = peft.get("peft_scheme") if isinstance(peft, dict) else None
    if scheme not in (None, "none", "None"):
        merge = " merged with it by NeMo's merge_lora_weights/merge.py" if "lora" in str(scheme) else ""
        raise ConfigError(f"{path} is of an adapter alone ({scheme}), which is no model; give {base}{merge}.")
    kinds = [kind for kind in KINDS if kind in target and "Adapter" not in target]
    if not kinds:
        raise ConfigError(f"{path} is of a {target}; of NeMo's models {listed(KINDS)} are supported.")
    return kinds[0]
