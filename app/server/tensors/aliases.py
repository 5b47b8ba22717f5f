"""Other names of the protocol's tensors and parameters: each is taken wherever the name that it stands for is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from vlm.errors import InputError, meant
from vlm_app.server.tensors.settings import ADAPTER, OFFERED, STREAM

Value = TypeVar("Value")

ALIASES = {
    # of the settings themselves, as Hugging Face has them: max_new_tokens, num_beams, …
    **{field: name for name, (field, _) in OFFERED.items() if field != name},
    # of FasterTransformer's GPT, and of other kinds of tasks
    "input_lengths": "sequence_length",
    "request_output_len": "max_output_len",
    "task_id": ADAPTER,
    "ia3_tasks": ADAPTER,
    # of KServe's own generate routes
    "max_tokens": "max_output_len",
    # of TensorRT-LLM's backend
    "return_log_probs": "is_return_log_probs",
    "min_tokens": "min_length",
    "lora_task_id": ADAPTER,
    "runtime_top_p_decay": "top_p_decay",
    "runtime_top_p_min": "top_p_min",
    "runtime_top_p_reset_ids": "top_p_reset_ids",
    "streaming": STREAM,
}


def by_own_names(values: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """Returns the values by the names that aliases stand for. Raises InputError for two of one name."""
    sent: dict[str, str] = {}
    named: dict[str, Value] = {}
    for name, value in values:
        own = ALIASES.get(name, name)
        if own in sent:
            raise InputError(_twice(sent[own], name))
        sent[own], named[own] = name, value
    return named


def sent_names(names: Iterable[str]) -> dict[str, str]:
    """Returns what a request calls the names that its aliases stand for, where it has one word for them alone."""
    sent = [*names]
    counts = Counter(ALIASES.get(name, name) for name in sent)
    return {ALIASES[name]: name for name in sent if name in ALIASES and counts[ALIASES[name]] == 1}


def nearest(unknown: Sequence[str], names: Iterable[str]) -> str:
    """Returns a clause of which known name, one of the `names` or another one of theirs, is like the first unknown one;
    "" where none is."""
    own = {*names}
    known = [*own, *(alias for alias, name in ALIASES.items() if name in own)]
    return meant(unknown[0], known)


def _twice(first: str, second: str) -> str:
    if first == second:
        return f"{first} is given twice; give it once."
    return f"{first}, {second} say the same; give one of them."
