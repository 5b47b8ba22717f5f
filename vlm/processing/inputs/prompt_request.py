"""Requests to a model that is asked in words: a prompt or a conversation, with images in it or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlm.errors import InputError, LengthError, listed
from vlm.processing.chat.conversation import PLACEHOLDER, Conversation
from vlm.processing.chat.prompts import Prompts
from vlm.processing.inputs.context import InputContext
from vlm.processing.inputs.fields import InputFields, as_images, check_text
from vlm.requests.answer_form import AnswerForm
from vlm.requests.image import Image
from vlm.requests.request import Request, Stops
from vlm.requests.sampling_params import SamplingParams


def prompt_request(
    fields: InputFields, context: InputContext, prompts: Prompts, *, params: SamplingParams, stops: Stops | None
) -> Request:
    """Makes the request of a prompt. Raises InputError and LengthError."""
    prompt = _Prompt.from_fields(fields, context, prompts, params)
    in_words, form = prompt.tokens()
    _check_names(fields, context)
    table = fields.table
    ids = context.prompt_ids(fields) or (None if in_words is None else [*context.rows_of(table), *in_words])
    if not ids:
        raise InputError("there is no prompt: give a prompt, messages or token ids.")
    shared: dict[str, Any] = {"params": params, "stops": stops, "images": prompt.images, "prompt_table": table}
    if not context.has_encoder:
        return Request(tuple(ids), **shared)
    if len(ids) > context.max_encoder_len:
        raise LengthError(
            f"the prompt has {len(ids)} tokens with its images, {len(ids) - context.max_encoder_len} more than the"
            " engine was built for; shorten it",
            context.shorter_or_longer(len(ids)),
            settings=("max_encoder_input_len", "truncate"),
        )
    return Request(context.start_of(fields), encoder_input_ids=tuple(ids), answer_form=form, **shared)


def _check_names(fields: InputFields, context: InputContext) -> None:
    """Raises InputError for fields of models that are not asked in words."""
    unknown = ("encoder_output", "src_lang", "tgt_lang")
    if names := fields.among(unknown if context.has_encoder else ("encoder_input_ids", *unknown)):
        raise InputError(f"{context.family.name} is asked in words: it takes no {listed(names)}.")


@dataclass(frozen=True)
class _Prompt:
    """What an input says in words, with its images: a text, then tokens."""

    fields: InputFields
    context: InputContext
    prompts: Prompts
    images: tuple[Image, ...]
    suffix: str  # after a prompt
    limit: int | None  # tokens that a prompt is cut to

    @classmethod
    def from_fields(
        cls, fields: InputFields, context: InputContext, prompts: Prompts, params: SamplingParams
    ) -> _Prompt:
        """Reads the images. Raises InputError for those that the model does not take."""
        conversation: Conversation | None = fields.messages
        sources, own = [] if conversation is None else conversation.images, as_images(fields.images)
        if sources and own:
            raise InputError("images were given in the messages and besides them; give each once.")
        if sources and context.images.image_processor is None:
            raise InputError(f"{context.family.name} takes text, not images; leave them out of the messages.")
        images = context.images.of_prompt(own or sources, fields.pixel_values)
        suffix = context.suffix(fields)
        return cls(fields, context, prompts, images, suffix, fields.truncation(context.prompt_limit(params)))

    def tokens(self) -> tuple[list[int] | None, AnswerForm | None]:
        """Returns the tokens of what is said in words, None where nothing is, and how the answer to a task is read."""
        fields = self.fields
        if fields.messages is not None:
            return self._of_conversation(fields.messages)
        if fields.raw_prompt is not None:
            text = self._cut(fields.raw_prompt)
            return self._ids(text + self.suffix, limit=self.limit, cut_part=text, as_given=True), None
        prompt = fields.text if fields.prompt is None else fields.prompt
        if prompt is None and (not self.images or self.context.prompt_ids(fields)):
            return None, None
        text = self._cut(prompt)
        whole, form = self._of_task(self.prompts.of_prompt(text + self.suffix, len(self.images)))
        return self._ids(whole, limit=self.limit, cut_part=text), form

    def _of_conversation(self, conversation: Conversation) -> tuple[list[int], AnswerForm | None]:
        open_ended = bool(self.fields.continue_final_message)
        text = self.prompts.of_conversation(conversation, len(self.images), continue_final_message=open_ended)
        whole, form = self._of_task(self.context.bounded(text))
        return self._ids(whole), form

    def _ids(self, text: str, **options: Any) -> list[int]:
        """Returns the tokens of a text, the images in it; `options`: see Prompts.ids."""
        rows, grids = [image.rows for image in self.images], [image.grid for image in self.images]
        return self.prompts.ids(text, rows, len(self.fields.table or ()), grids=grids, **options)

    def _of_task(self, text: str) -> tuple[str, AnswerForm | None]:
        """Returns what a model reads for a text that marks a task, or beside which one is named, and how its answer is
        read; for one without a task the text itself. Raises InputError for a task that does not fit the input."""
        fields, tasks = self.fields, self.context.family.prompt_tasks
        if tasks is None:
            return text, None
        is_asked = bool(fields.among(("prompt", "text", "messages")))
        prompt = text.replace(PLACEHOLDER, "").strip() if is_asked else None
        words, task = tasks.resolve(prompt, fields.task, fields.question)
        if task is None:
            return self.context.bounded(text), None
        if len(self.images) != 1:
            raise InputError(f"task {task!r} is of one image, got {len(self.images)}; send a request for each.")
        return self.context.bounded(words), AnswerForm(task, self.images[0].size)

    def _cut(self, prompt: Any) -> str:
        """Returns a prompt, cut to what is read for its limit. Raises LengthError for one that is too long for
        certain."""
        check_text("prompt", prompt)
        if self.limit is not None and self.context.tokenizer is not None:
            return self.context.tokenizer.shortened(prompt or "", self.limit)
        return self.context.bounded(prompt or "")
