"""How what a model writes is read, where that depends on what it was asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerForm:
    """The task that a model was asked to do, and the picture that it was asked of."""

    task: str
    size: tuple[int, int]  # (width, height) of the picture in pixels, as it was given
