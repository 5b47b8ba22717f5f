"""Tasks and questions of inputs: what each stands for takes its place, where the model is not told of it in words."""

from __future__ import annotations

from vlm.errors import InputError
from vlm.processing.inputs.context import InputContext
from vlm.processing.inputs.fields import InputFields, check_text, together
from vlm.processing.inputs.questions import put_question
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.tasks import TaskPrompts


def put_task(fields: InputFields, context: InputContext) -> None:
    """Puts what a task stands for in its place: where the output begins, or the rows of a tuned prompt. One that a
    model is told of in its prompt stays. Raises InputError for one that is unknown or does not go with the rest."""
    if context.family.prompt_tasks is not None:
        _check_task(fields)
    elif context.tokenizer is not None and context.tokenizer.tasks is not None:
        _put_beginning(fields, context.tokenizer.tasks, context.tokenizer, context.max_seq_len)
    else:
        if (use := context.images.question_use) is not None:
            put_question(fields, use)
        elif fields.question is not None:
            name = context.family.name
            said = f"{name} has no task that takes a question; leave it out, or ask in a prompt."
            raise InputError(said, settings=("question",))
        if fields.task is not None:
            _put_tuned_prompt(fields, context)


def _check_task(fields: InputFields) -> None:
    """Raises InputError for a task, of which a model is told in its prompt, beside what it reads as it is."""
    as_it_is = fields.among(("raw_prompt", "input_ids", "encoder_input_ids"))
    if (told := fields.among(("question", "task"))) and as_it_is:
        raise together([*as_it_is, *told])


def _put_beginning(fields: InputFields, tasks: TaskPrompts, tokenizer: Tokenizer, limit: int) -> None:
    """Puts the tokens where the output begins, of at most `limit`, in the place of the task and question, or of the
    prompt. Raises InputError for those that do not go together, or that the model does not know."""
    fields.check_one(names := ("prompt", "decoder_prompt_token_ids", "task"))
    if (named := fields.among(names)) and named != ["task"] and fields.question is not None:
        raise together([*named, "question"])
    if fields.decoder_prompt_token_ids is not None:
        return
    prompt = fields.prompt or tasks.prompt(fields.task, fields.question)
    fields.prompt = fields.task = fields.question = None
    if prompt is not None:
        check_text("prompt", prompt)
        tokenizer.check_length(prompt, limit)
        fields.decoder_prompt_token_ids = tokenizer.encode(prompt)


def _put_tuned_prompt(fields: InputFields, context: InputContext) -> None:
    if fields.prompt_table is not None:
        raise together(["task", "prompt_table"])
    fields.prompt_table, fields.task = context.tuned_prompt(fields.task), None
