"""The folder that PEFT saves of an adapter: its files, and the rows that prompt tuning and p-tuning leave in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.artifacts.files import read_json
from vlm.errors import InputError, listed

if TYPE_CHECKING:
    from torch import Tensor

FILE, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WHAT = "folder of a PEFT adapter"
TUNED_PROMPTS = ("PROMPT_TUNING", "P_TUNING")  # kinds of adapters (`peft_type`) that are rows before a text
ROWS = "prompt_embeddings"


def adapter_tensors(folder: Path) -> Mapping[str, Tensor]:
    """Returns an adapter's tensors; a pickle, which older ones are, is read as one of tensors alone."""
    from vlm.artifacts.hugging_face.hf_folder import (
        read_pickle,  # they load torch, which the command line's options do without
    )
    from vlm.artifacts.weights import TensorFiles

    pickle = folder / "adapter_model.bin"
    return (
        read_pickle(pickle) if pickle.exists() and not (folder / WEIGHTS).exists() else TensorFiles([folder / WEIGHTS])
    )


def tuned_rows(folder: Path, label: str) -> Tensor:
    """Returns the rows [n, hidden] of a prompt, as PEFT puts them before a text: of what encoder-decoders have for both
    sides it takes the encoder's. Raises InputError, which begins with `label`, for an adapter of another kind."""
    values = read_json(folder / FILE, InputError, WHAT)
    if (kind := values.get("peft_type")) not in TUNED_PROMPTS:
        raise InputError(
            f"{label} is a PEFT adapter of type {kind}, not of tuned prompts ({listed(TUNED_PROMPTS)}); one of LORA or"
            " IA3 goes with --lora NAME=FOLDER."
        )
    tensors, count = adapter_tensors(folder), values.get("num_virtual_tokens")
    rows = tensors.get(ROWS)
    if rows is None or rows.ndim != 2 or not isinstance(count, int) or not 0 < count <= len(rows):
        raise InputError(f"{label} has no {ROWS} of its num_virtual_tokens ({count}); fetch or save it again.")
    return rows[:count].float()
