"""Prompts of vision-language models and of decoders alone: a question and its images, or a conversation -> token ids.

Images become rows of the request's prompt table: ids from the vocabulary's size on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from pathlib import Path

from vlm.artifacts.hugging_face.chat_template import read_template
from vlm.errors import InputError, counted, counted_given
from vlm.processing.chat.conversation import PLACEHOLDER, Conversation, ImagePart, Message, split_text
from vlm.processing.chat.image_texts import Grid, ImageTexts
from vlm.processing.text.tokenization import Piece, Tokenizer, ids_without, no_tokenizer
from vlm.registry.spec import ChatFormat

MARK = "<|the text ends here|> "  # with a blank, to see whether a template strips texts


class Prompts:
    """Makes the prompts of one engine. Used by several threads at once."""

    def __init__(
        self,
        form: ChatFormat,
        tokenizer: Tokenizer | None,
        template: str | None,
        vocab_size: int,
        *,
        with_images: bool = True,
    ):
        """`with_images`: a model of texts alone reads what its template writes as it is, as Hugging Face's tokenizers
        have it; its processors add the special tokens that a template left to them."""
        self.form, self.tokenizer, self.template, self.vocab_size = form, tokenizer, template, vocab_size
        self.with_images = with_images

    @classmethod
    def load(
        cls,
        form: ChatFormat,
        tokenizer: Tokenizer | None,
        folder: Path | None,
        vocab_size: int,
        *,
        with_images: bool = True,
    ) -> Prompts:
        """Loads them with the folder's chat template, or the family's where the folder has none."""
        own = read_template(folder, with_images=with_images) if folder else None
        template = own or form.template
        return cls(form, tokenizer, template, vocab_size, with_images=with_images)

    # --- text ---
    def of_prompt(self, prompt: str, num_images: int) -> str:
        """Returns what the model reads for a question about images; those that the text does not place come first."""
        prompt = prompt.replace(self.form.placeholder, PLACEHOLDER)
        num_placed = prompt.count(PLACEHOLDER)
        _check_count(num_placed, num_images, optional=not num_placed)
        if self.form.question is not None:
            return self.form.question(prompt)
        if self.template is None:
            return prompt if num_placed else PLACEHOLDER * num_images + prompt
        parts = (*([] if num_placed else [ImagePart()] * num_images), prompt)
        return self._rendered(self.template, [Message("user", parts)])

    def of_conversation(
        self, conversation: Conversation, num_images: int, *, continue_final_message: bool = False
    ) -> str:
        """Returns what the model reads for a conversation that it is to go on with; `continue_final_message`: with the
        assistant's last message, which has no end then."""
        _check_count(conversation.num_placed, num_images)
        if self.template is None:
            raise InputError("this model has no chat template, it does not converse; give a prompt instead.")
        if continue_final_message:
            return self._open_ended(self.template, conversation)
        if conversation.messages[-1].role == "assistant":
            raise InputError(
                "the last message is the assistant's; end with one of the user, or go on with it"
                " (continue_final_message=True)."
            )
        return self._rendered(self.template, conversation.messages)

    def _open_ended(self, template: str, conversation: Conversation) -> str:
        """Cuts as Hugging Face does: what the template puts after the last text is cut off."""
        *before, last = conversation.messages
        if last.role != "assistant" or PLACEHOLDER in last.pieces or not last.text.strip():
            said = "continue_final_message needs a last message of the assistant with a text; add one."
            raise InputError(said, settings=("continue_final_message",))
        message = Message(last.role, (last.text + MARK,))
        text = self._rendered(template, [*before, message], add_generation_prompt=False)
        if (end := text.rfind(MARK.strip())) < 0:
            raise InputError("the model's chat template leaves the last message out; it cannot be gone on with.")
        # a template that strips texts would have stripped this one
        return text[:end] if text.startswith(MARK, end) else text[:end].rstrip()

    def _rendered(self, template: str, turns: Iterable[Message], *, add_generation_prompt: bool = True) -> str:
        from vlm.processing.chat.templates import render, takes_parts

        # it takes contents as texts: all of them, or those that are
        always, takes_texts = not takes_parts(template), "is string" in template
        absent = {"tools": None, "documents": None}  # what Hugging Face says of what there is not
        named = self.tokenizer.named_tokens if self.tokenizer else {}
        messages = [turn.for_template(plain=always or (takes_texts and not turn.has_images)) for turn in turns]
        told = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        return render(template, {**named, **absent, **told})

    # --- ids ---
    def ids(
        self,
        text: str,
        image_rows: Items[int],
        given_rows: int = 0,
        *,
        grids: Items[Grid] = (),
        limit: int | None = None,
        cut_part: str | None = None,
        as_given: bool = False,
    ) -> list[int]:
        """Returns the tokens of a text, its i-th placeholder the `image_rows[i]` rows of image i, and where a model is
        told of them what is said of an image of `grids[i]`; `given_rows` of the prompt table come before them. `limit`:
        of its part `cut_part` (None: all of it) so many tokens are left out that the others are within. `as_given`: no
        chat template wrote the text."""
        if self.tokenizer is None:
            raise no_tokenizer()
        text = text.replace(self.form.placeholder, PLACEHOLDER)
        is_written = self.template is not None and self.form.question is None and not as_given
        before, after = ([], []) if is_written and not self.with_images else self.tokenizer.ends
        told, said = self._told(text, grids, len(image_rows)), text
        if told is not None:
            text, image_rows = told.put_into(text), told.rows_by_tile(image_rows)
            cut_part = None if cut_part is None else told.put_into(cut_part)
        images = self._rows(image_rows, given_rows)
        if self.form.images == "first":
            text = text.replace(PLACEHOLDER, "")
            rows = map(Piece, itertools.chain.from_iterable(images))
            pieces = [*rows, *map(Piece, before), *map(self._known, self.tokenizer.pieces(text)), *map(Piece, after)]
        else:
            _check_count(text.count(PLACEHOLDER), len(images))
            if self.tokenizer.bos_token and text.startswith(self.tokenizer.bos_token):
                before = []
            pieces = [*map(Piece, before), *self._inline(self.tokenizer, text, images), *map(Piece, after)]
        over = 0 if limit is None else len(pieces) + given_rows - limit
        if told is not None and over > 0:
            pieces = told.without_places(pieces, said)
        return ids_without(pieces, over, _span(text, cut_part), self.tokenizer.truncation_side)

    def _told(self, text: str, grids: Items[Grid], num_images: int) -> ImageTexts | None:
        """Returns what a text says of its images; None where their rows alone stand for them."""
        if self.form.image_text is None:
            return None
        _check_count(text.count(PLACEHOLDER), num_images)
        return ImageTexts.from_grids(self.form.image_text, grids)

    def _known(self, piece: Piece) -> Piece:
        """Raises InputError for a token that the model has not learned: its id would stand for a row of an image."""
        if piece.id >= self.vocab_size:
            raise InputError(
                f"the text holds a token of the tokenizer, id {piece.id}, that is outside the model's vocabulary of"
                f" {self.vocab_size}; leave it out."
            )
        return piece

    def _inline(self, tokenizer: Tokenizer, text: str, images: list[range]) -> Iterator[Piece]:
        image = iter(images)
        if (place := tokenizer.id_of(PLACEHOLDER)) is not None:
            for piece in tokenizer.pieces(text):
                yield from map(Piece, next(image)) if piece.id == place else (self._known(piece),)
            return
        at = 0
        for part in split_text(text):
            if part == PLACEHOLDER:
                yield from map(Piece, next(image))
            else:
                known = map(self._known, tokenizer.pieces(part))
                yield from (Piece(i, at + start, at + end) for i, start, end in known)
            at += len(part)

    def _rows(self, image_rows: Items[int], given_rows: int) -> list[range]:
        """Returns the ids that stand for each image's features."""
        ends = itertools.accumulate(image_rows, initial=self.vocab_size + given_rows)
        return list(itertools.starmap(range, itertools.pairwise(ends)))


def _span(text: str, part: str | None) -> tuple[int, int]:
    """Returns where a part lies in a text: templates may have stripped it, or lost it among what they made of it."""
    for form in () if part is None else (part, part.strip()):
        if (at := text.find(form)) >= 0 and form:
            return at, at + len(form)
    return 0, len(text)


def _check_count(num_placed: int, num_images: int, *, optional: bool = False) -> None:
    if num_placed != num_images and not optional:
        placed, given = counted(num_placed, f"{PLACEHOLDER} placeholder"), counted_given(num_images, "image")
        raise InputError(f"the prompt has {placed} and {given}; give one for each.")
