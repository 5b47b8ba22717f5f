"""The fields of inputs: their names, and what some of them stand for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from vlm.artifacts.prompt_tables import NOT_FINITE, TunedPrompt
from vlm.errors import InputError, listed
from vlm.processing.conversation import PLACEHOLDER
from vlm.processing.tokenization import Tokenizer
from vlm.registry.tasks import PromptTasks, TaskPrompts
from vlm.requests.answer_form import AnswerForm
from vlm.requests.prompt_table import PromptTable

INPUT_KEYS = (
    "images",
    "text",
    "suffix",
    "input_ids",
    "src_lang",
    "tgt_lang",
    "truncate",
    "prompt",
    "raw_prompt",
    "messages",
    "continue_final_message",
    "prompt_table",
    "task",
    "question",
    "pixel_values",
    "encoder_output",
    "encoder_input_ids",
    "decoder_prompt_token_ids",
    "lora",
)
KNOWN_KEYS = frozenset(INPUT_KEYS)
ENCODER_KEYS = ("images", "pixel_values", "text", "encoder_input_ids", "encoder_output")


def truncation_of(fields: dict[str, Any], most: int) -> int | None:
    """Returns the tokens that a text is cut to: with truncate=True `most`, with a number so many; None: it is not."""
    truncate = fields.get("truncate") or False
    if isinstance(truncate, bool):
        return most if truncate else None
    if not isinstance(truncate, int) or truncate < 1:
        raise InputError(f"truncate is {truncate!r}; it must be true, false or a number of tokens.")
    return min(most, truncate)


def with_beginning(fields: dict[str, Any], tasks: TaskPrompts, tokenizer: Tokenizer, limit: int) -> dict[str, Any]:
    """Returns an input with the tokens where its output begins, of at most `limit`, in the place of its task and
    question, or of its prompt. InputError for those that do not go together, or that the model does not know."""
    if len(names := [name for name in ("prompt", "decoder_prompt_token_ids", "task") if name in fields]) > 1:
        raise InputError(f"{listed(names)} were given together; an input has one of them.")
    if names and names != ["task"] and "question" in fields:
        raise InputError(f"{names[0]}, question were given together; an input has one of them.")
    if "decoder_prompt_token_ids" in fields:
        return fields
    prompt = fields.get("prompt") or tasks.prompt(fields.get("task"), fields.get("question"))
    rest = {key: value for key, value in fields.items() if key not in ("prompt", "task", "question")}
    if prompt is None:
        return rest
    tokenizer.check_length(prompt, limit)
    return {**rest, "decoder_prompt_token_ids": tokenizer.encode(prompt)}


def check_task(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns an input to a model that is told its tasks in prompts. Raises InputError for a task beside what it reads
    as it is."""
    as_it_is = [name for name in ("raw_prompt", "input_ids", "encoder_input_ids") if name in fields]
    if (told := sorted({"task", "question"} & fields.keys())) and as_it_is:
        raise InputError(f"{listed([*as_it_is, *told])} were given together; an input has one of them.")
    return fields


def with_task(
    text: str, fields: dict[str, Any], tasks: PromptTasks, sizes: Sequence[tuple[int, int]]
) -> tuple[str, AnswerForm | None]:
    """Returns what a model reads for a prompt that marks a task, or beside which one is named, and how its answer is
    read; of a prompt without a task the text itself. `sizes`: of the images, (width, height). Raises InputError for a
    task that does not fit the input."""
    is_asked = any(name in fields for name in ("prompt", "text", "messages"))
    prompt = text.replace(PLACEHOLDER, "").strip() if is_asked else None
    words, task = tasks.resolve(prompt, fields.get("task"), fields.get("question"))
    if task is None:
        return text, None
    if len(sizes) != 1:
        raise InputError(f"task {task!r} is of one image, got {len(sizes)}; send a request for each.")
    return words, AnswerForm(task, sizes[0])


def rows_of(table: PromptTable | None, vocab_size: int) -> range:
    """Returns the ids of a prompt table's rows, which go before a text."""
    return range(vocab_size, vocab_size + (0 if table is None else len(table)))


def with_prompt_table(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns an input whose prompt table has been read: its key is a pass over the rows. A tuned prompt stays, which
    has more than rows, and is read once for all. InputError as of `prompt_table_of`."""
    rows = fields.get("prompt_table")
    if rows is None or isinstance(rows, TunedPrompt):
        return fields
    return {**fields, "prompt_table": prompt_table_of(fields)}


def prompt_table_of(fields: dict[str, Any]) -> PromptTable | None:
    """Returns the rows of an input's prompt table [n, hidden]: a tensor, an array, a tuned prompt, or what was read of
    one. InputError for another shape, and for NaN or infinity."""
    rows = fields.get("prompt_table")
    if rows is None or isinstance(rows, PromptTable):
        return rows
    if isinstance(rows, TunedPrompt):
        return _tuned_table(rows)
    import torch

    rows = torch.as_tensor(rows)
    if rows.ndim != 2 or not rows.is_floating_point():
        raise InputError(f"the prompt table is {rows.dtype} of shape {list(rows.shape)}; give floats [rows, hidden].")
    if not rows.float().isfinite().all():
        raise InputError(f"the prompt table holds {NOT_FINITE}.")
    return PromptTable.from_rows(rows)


@functools.lru_cache(maxsize=256)  # of tasks that are asked for again and again: a key is a pass over the rows
def _tuned_table(tuned: TunedPrompt) -> PromptTable:
    import torch

    return PromptTable.from_rows(torch.from_numpy(tuned.rows))
