"""NeMo's prompt learning: the rows that p- and prompt-tuning leave of each task -> a folder of tuned prompts.

NVIDIA NeMo, megatron_base_prompt_learning_model.py, prompt_encoder.py and t5_prompt_learning_dataset.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from llm_engines.converters.nemo.archive import CONFIG
from llm_engines.converters.nemo.weights import weight_files
from vlm.artifacts.hugging_face.hf_folder import read_nested_pickle
from vlm.artifacts.prompt_tables import NOT_FINITE, PromptTables, TunedPrompt, write_tables
from vlm.errors import CheckpointError, VlmWarning, listed

TABLE = re.compile(r"(?:prompt_table\.)+(.+)\.prompt_embeddings\.weight")
PLACE = "<|VIRTUAL_PROMPT_0|>"  # of a template: here its rows go
SENTINEL = "<extra_id_0>"  # as in pretraining: the answer stands for what was masked


def is_here(config: Mapping[str, Any]) -> bool:
    """Says whether a configuration is of tuned prompts, which are beside a model."""
    style = config.get("virtual_prompt_style")
    return style not in (None, "", "no-prompts") or "PromptLearning" in str(config.get("target"))


def convert(folder: Path, config: Mapping[str, Any], out: Path) -> PromptTables:
    """Writes the tuned prompts of an archive's content into a folder at `out`; tasks that have none are named in a
    warning. Raises CheckpointError for what is damaged, unsafe or does not fit its configuration."""
    tables = _tables(weight_files(folder)[0][0])  # all ranks have them
    templates = _templates(config, folder)
    if absent := [name for name in templates if name not in tables]:  # NeMo keeps templates that were not tuned
        warnings.warn(
            f"the archive has no rows of {listed(absent)}, which its {CONFIG} names; it has those of {listed(tables)}.",
            VlmWarning,
            stacklevel=3,
        )
    names = [name for name in {**templates, **tables} if name in tables]
    prompts = [_prompt(name, tables[name], templates.get(name, {}), config) for name in names]
    if len(widths := {prompt.rows.shape[1] for prompt in prompts}) > 1:
        raise CheckpointError(f"{folder}: the rows of its tasks differ in width ({listed(sorted(widths))}).")
    return write_tables(out, str(config.get("language_model_path") or ""), prompts)


def _tables(path: Path) -> dict[str, Tensor]:
    """Returns the rows of each task, by its name."""
    state = read_nested_pickle(path)
    tables = {match[1]: x for name, x in state.items() if (match := TABLE.fullmatch(name)) and x.ndim == 2}
    if not tables or not all(x.count_nonzero() for x in tables.values()):
        raise CheckpointError(
            f"{path} holds no rows of tuned prompts (prompt_table); give the .nemo file that NeMo wrote at the end of"
            " the tuning."
        )
    if damaged := [name for name, x in tables.items() if not x.isfinite().all()]:
        raise CheckpointError(f"{path} holds {NOT_FINITE} ({listed(damaged)}).")
    return tables


def _templates(config: Mapping[str, Any], folder: Path) -> dict[str, Mapping[str, Any]]:
    """Returns what is said of each task, by its name, in the order of their numbers."""
    templates = config.get("task_templates") or []
    if not isinstance(templates, list) or not all(isinstance(t, Mapping) and t.get("taskname") for t in templates):
        raise CheckpointError(
            f"{folder / CONFIG} is damaged: its task_templates are no list of tasks with a taskname; fetch it again."
        )
    return {str(template["taskname"]): template for template in templates}


def _prompt(name: str, rows: Tensor, template: Mapping[str, Any], config: Mapping[str, Any]) -> TunedPrompt:
    if template.get("total_virtual_tokens") not in (None, len(rows)):
        raise CheckpointError(
            f"the task {name} has {len(rows)} rows, its total_virtual_tokens is {template['total_virtual_tokens']}."
        )
    text, data = str(template.get("prompt_template") or ""), config.get("data")
    data = data if isinstance(data, Mapping) else {}
    splits = template.get("virtual_token_splits")
    if (isinstance(splits, list) and len(splits) > 1) or (text and not text.startswith(PLACE)):
        warnings.warn(
            f"the rows of the task {name} do not all stand before its texts ({text!r}), where they are put here; send"
            " token ids, among which ids from the vocabulary's size on are the rows.",
            VlmWarning,
            stacklevel=4,
        )
    is_t5 = "T5" in str(config.get("target"))
    suffix = SENTINEL if is_t5 and data.get("add_sentinel_to_input", True) else ""
    return TunedPrompt(rows.float().numpy(), name, text, suffix, bool(is_t5 and data.get("add_eos", True)))
