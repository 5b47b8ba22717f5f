"""How a family reads a page in steps: first its layout, then each of its parts by itself, then all of them as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ask:
    """What a model is asked about a picture, and the settings that it was published with; a request's come first."""

    prompt: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # of SamplingParams


@dataclass(frozen=True)
class Block:
    """A part of a page."""

    kind: str  # as the model names it
    box: tuple[float, float, float, float]  # left, top, right, bottom: parts of the page's width and height
    angle: int = 0  # 0, 90, 180 or 270: degrees to turn it counterclockwise, so that it stands upright
    goes_on: bool = False  # with the text before it

    @property
    def area(self) -> float:
        """Returns its part of the page."""
        left, top, right, bottom = self.box
        return (right - left) * (bottom - top)


@dataclass(frozen=True)
class PageSteps:
    """The steps of one publication. A model is known by its tokenizer, or by the name that it was published under."""

    tokens: tuple[str, ...]  # which the tokenizer of such a model has, and others' have not
    name: str  # how names of its folders begin
    system: str  # what each conversation begins with
    layout: Ask
    layout_size: tuple[int, int]  # (width, height) that the whole page is scaled to for its layout
    blocks: Callable[[str], list[Block]]  # the answer about the layout -> the page's parts in reading order
    ask: Callable[[Block], Ask | None]  # what is asked of a part; None: it is not read
    text: Callable[[Sequence[tuple[Block, str]]], str]  # parts and what was read of them ("": nothing) -> the page
    ends: tuple[str, ...] = ()  # what answers end with, as they are decoded, and no text has
    min_side: int = 1  # pixels: a smaller part is scaled up
    max_aspect: float = 200.0  # a slimmer part gets a white margin
