"""Questions about images to models that read no text beside one: drawn on the picture, or where the output begins."""

from __future__ import annotations

from typing import Any

from vlm.errors import InputError
from vlm.limits import MAX_QUESTION_CHARACTERS
from vlm.processing.inputs.fields import InputFields, as_images, together
from vlm.processing.media.image_processor import missing_question
from vlm.registry.images.processor import QuestionUse
from vlm.requests.pixels import ImagePixels


def drawn_question(question: Any, use: QuestionUse | None) -> str | None:
    """Returns the question that is to be drawn on an input's image; None where there is nothing to draw. InputError for
    one that is missing, empty or too long."""
    if use is not QuestionUse.DRAWN:
        return None
    if not isinstance(question, str) or not question.strip():
        raise missing_question()
    if len(question) > MAX_QUESTION_CHARACTERS:
        raise InputError(
            f"the question has {len(question):,} characters, {MAX_QUESTION_CHARACTERS:,} can be drawn; shorten it."
        )
    return question


def put_question(fields: InputFields, use: QuestionUse) -> None:
    """Puts a question in its place: checked, beside a picture to draw it on, or where the output begins. InputError for
    one that is missing, or that something else has the place of."""
    if use is QuestionUse.DRAWN and _is_picture(fields.images):
        fields.question = drawn_question(fields.question, use)
        return
    if fields.question is None:
        return
    if use is QuestionUse.DRAWN:
        raise InputError("the question is drawn on pictures; give images with it, or leave it out: pixels show theirs.")
    if both := fields.among(("prompt", "decoder_prompt_token_ids")):
        raise together([both[0], "question"])
    fields.prompt, fields.question = fields.question, None


def _is_picture(images: Any) -> bool:
    """Says whether images are to be read yet: another process may have done so."""
    return any(not isinstance(image, ImagePixels | None) for image in as_images(images))
