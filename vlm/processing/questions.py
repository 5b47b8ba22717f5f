"""Questions about images to models that read no text beside one: drawn on the picture, or where the output begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlm.errors import InputError
from vlm.limits import MAX_QUESTION_CHARACTERS
from vlm.processing.image_processor import NO_QUESTION
from vlm.registry.images import QuestionUse
from vlm.requests.pixels import ImagePixels


def drawn_question(fields: Mapping[str, Any], use: QuestionUse | None) -> str | None:
    """Returns the question that is to be drawn on an input's image; None where there is nothing to draw, or no image to
    draw it on. InputError for one that is missing, empty or too long."""
    question = fields.get("question")
    if use is not QuestionUse.DRAWN:
        return None
    if not isinstance(question, str) or not question.strip():
        raise InputError(NO_QUESTION)
    if len(question) > MAX_QUESTION_CHARACTERS:
        raise InputError(
            f"the question has {len(question):,} characters, {MAX_QUESTION_CHARACTERS:,} can be drawn; shorten it."
        )
    return question


def with_question(fields: dict[str, Any], use: QuestionUse) -> dict[str, Any]:
    """Returns an input with its question in its place: checked, beside a picture to draw it on, or where the output
    begins. InputError for one that is missing, or that something else has the place of."""
    if use is QuestionUse.DRAWN and _is_picture(fields.get("images")):
        return {**fields, "question": drawn_question(fields, use)}
    if "question" not in fields:
        return fields
    rest = {key: value for key, value in fields.items() if key != "question"}
    if use is QuestionUse.DRAWN:
        raise InputError("the question is drawn on pictures; give images with it, or leave it out: pixels show theirs.")
    if both := [name for name in ("prompt", "decoder_prompt_token_ids") if name in fields]:
        raise InputError(f"{both[0]}, question were given together; an input has one of them.")
    return {**rest, "prompt": fields["question"]}


def _is_picture(images: Any) -> bool:
    """Says whether images are to be read yet: another process may have done so."""
    images = images if isinstance(images, list | tuple) else [images]
    return any(not isinstance(image, ImagePixels | None) for image in images)
