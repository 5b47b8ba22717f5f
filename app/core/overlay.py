"""What a model found in a picture, drawn on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000", "#000075")
# an answer's key -> the key of its labels where it has one of its own
PLACES = {"bboxes": "bboxes_labels", "quad_boxes": "labels", "polygons": "polygons_labels"}
SCALE = 320  # of a picture's longer side: the width of lines


def regions_of(text: str) -> dict[str, Any] | None:
    """Returns the places that an answer names, as JSON; None where it is a text."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and PLACES.keys() & answer.keys() else None


def draw(picture: Image.Image, answer: Mapping[str, Any]) -> None:
    """Draws each region's outlines on a picture, and its label where it begins."""
    from PIL import ImageDraw, ImageFont

    width = max(1, max(picture.size) // SCALE)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=8 * width + 4)
    for colour, (outlines, label) in zip(itertools.cycle(COLOURS), _outlined(answer), strict=False):
        for points in outlines:
            pen.line([*points, points[0]], fill=colour, width=width)
        if label and outlines:
            at = outlines[0][0]
            pen.rectangle(pen.textbbox(at, label, font=font), fill=colour)
            pen.text(at, label, fill="white", font=font)


Outline = list[tuple[float, float]]


def _outlined(answer: Mapping[str, Any]) -> Iterator[tuple[list[Outline], str]]:
    """Yields each region's outlines, points one after the other, and its label."""
    for key, own in PLACES.items():
        regions = answer.get(key, [])
        labels = answer.get(own, answer.get("labels", [""] * len(regions)))
        for region, label in zip(regions, labels, strict=False):  # none of the one, labels of the other
            numbers = region if key == "polygons" else [_corners(region)]
            yield [_points(each) for each in numbers if each], label


def _points(numbers: list[float]) -> Outline:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _corners(numbers: list[float]) -> list[float]:
    """Returns the corners of a box of two, or four as they are."""
    if len(numbers) != 4:
        return numbers
    left, top, right, bottom = numbers
    return [left, top, right, top, right, bottom, left, bottom]
