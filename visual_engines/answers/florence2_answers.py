"""What Florence-2 writes for each task, as transformers' Florence2Processor reads it: texts, or boxes, polygons and
regions with their labels, in pixels of the picture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from vlm.requests.answer_form import AnswerForm

BINS = 1000  # that each side of a picture is divided into; a place is the middle of one
ENDS = re.compile(r"</?s>|<pad>")
LOC = r"<loc_(\d+)>"
PLACE = re.compile(LOC)
BOX, QUAD = re.compile(LOC * 4), re.compile(r"(.+?)" + LOC * 8)
QUADS = re.compile(r"(?:<loc_\d+>){8,}")
LABEL = r"^\s*(.*?)(?=</?od>|</?box>|</?bbox>|<loc_{})"
BOX_LABEL, POLYGON_LABEL = re.compile(LABEL.format("")), re.compile(LABEL.format("|<poly>"))
BOXED, UNLABELLED_BOXED = (re.compile(rf"{label}(?:<loc_\d+>){{4,}}") for label in ("[^<]++", ""))
OUTLINED, UNLABELLED_OUTLINED = (
    re.compile(rf"{label}(?:<loc_\d+>|<sep>|</?poly>){{4,}}") for label in ("[^<]++", "")
)  # fmt: skip
INSTANCE, OUTLINE = re.compile(r"<poly>(.*?)</poly>"), re.compile(r"((?:<loc_\d+>)+)(?:<sep>|$)")
# phrases of a caption that name nothing in a picture: post_processor_config's of florence-community/*
NAMELESS = frozenset(
    """it I me mine you your yours he him his she her hers they them their theirs one oneself we us our ours its myself
    yourself himself herself itself ourselves yourselves themselves this that these those who whom whose which what all
    another any anybody anyone anything each everybody everyone everything few many nobody none several some somebody
    someone something image images the a an lots""".split()
) | {"each other", "one another", "the image", "a group", "other objects", "a set"}


class Region(NamedTuple):
    """What is said of a part of a picture, and where that is: x, y, x, y, … in pixels."""

    label: str
    places: Any  # of a box 4 numbers, of a polygon's outlines lists of them


def answer(text: str, form: AnswerForm) -> str:
    """Returns what a task's answer says: the text, or JSON of its regions."""
    found = read_answer(text, form)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def read_answer(text: str, form: AnswerForm) -> str | dict[str, Any]:
    """Returns the answer as `post_process_generation` does, without the task around it."""
    return READERS.get(form.task, _plain)(text, form.size)


Size = tuple[int, int]  # (width, height)


def _plain(text: str, size: Size) -> str:
    return re.sub(r"</?s>", "", text).strip()


def _boxes(text: str, size: Size) -> dict[str, Any]:
    return _named("bboxes", _boxed(text, size, BOXED))


def _proposals(text: str, size: Size) -> dict[str, Any]:
    return _named("bboxes", _boxed(text, size, UNLABELLED_BOXED))


def _phrases(text: str, size: Size) -> dict[str, Any]:
    return _named("bboxes", _boxed(text, size, BOXED, nameless=NAMELESS))


def _polygons(text: str, size: Size) -> dict[str, Any]:
    return _named("polygons", _outlined(text, size, UNLABELLED_OUTLINED))


def _boxes_or_polygons(text: str, size: Size) -> dict[str, Any]:
    has_polygons = "<poly>" in ENDS.sub("", text)
    polygons = list(_outlined(text, size, OUTLINED)) if has_polygons else []
    boxes = [] if has_polygons else list(_boxed(text, size, BOXED))
    return {**_named("bboxes", boxes, "bboxes_labels"), **_named("polygons", polygons, "polygons_labels")}


def _words(text: str, size: Size) -> dict[str, Any]:
    matches = (match for line in ENDS.sub("", text).split("\n") for match in QUAD.findall(_with_places(line)))
    return _named("quad_boxes", (Region(words.strip(), _pixels(bins, size)) for words, *bins in matches))


def _with_places(line: str) -> str:
    """Returns a line up to its last places: in what follows them a search would be of quadratic time."""
    end = 0
    for run in QUADS.finditer(line):
        end = run.end()
    return line[:end]


READERS: dict[str, Callable[[str, Size], str | dict[str, Any]]] = {
    "OD": _boxes,
    "DENSE_REGION_CAPTION": _boxes,
    "REGION_PROPOSAL": _proposals,
    "CAPTION_TO_PHRASE_GROUNDING": _phrases,
    "REFERRING_EXPRESSION_SEGMENTATION": _polygons,
    "REGION_TO_SEGMENTATION": _polygons,
    "OPEN_VOCABULARY_DETECTION": _boxes_or_polygons,
    "OCR_WITH_REGION": _words,
}


def _named(places: str, regions: Any, labels: str = "labels") -> dict[str, Any]:
    found = list(regions)
    return {places: [region.places for region in found], labels: [region.label for region in found]}


def _boxed(text: str, size: Size, pattern: re.Pattern[str], nameless: frozenset[str] = frozenset()) -> Iterator[Region]:
    """Yields each box with the label that its run of boxes has before it."""
    for run in pattern.findall(ENDS.sub("", text)):
        label = BOX_LABEL.search(run)
        if label is not None and (name := label[0].strip()) not in nameless:
            yield from (Region(_ascii(name), _pixels(box.groups(), size)) for box in BOX.finditer(run))


def _outlined(text: str, size: Size, pattern: re.Pattern[str]) -> Iterator[Region]:
    """Yields each polygon, of one or several outlines, with its label."""
    for run in pattern.findall(ENDS.sub("", text)):
        label = POLYGON_LABEL.search(re.sub(r"^<loc_\d+>", "", run, count=1))
        if label is None:
            continue
        instances = INSTANCE.findall(run) if "<poly>" in run and "</poly>" in run else [run]
        for instance in instances:
            if outlines := [PLACE.findall(outline) for outline in OUTLINE.findall(instance)]:
                yield Region(label[0].strip(), [_pixels(bins, size) for bins in outlines])


def _pixels(bins: Sequence[str], size: Size) -> list[int]:
    """Returns x, y, x, y, … of as many bins, in whole pixels; a last one alone is none."""
    import numpy as np  # computed as torch does: a product in float32 may lie on the other side of a whole number

    steps = [np.float32(side / BINS) for side in size]
    whole = bins[: len(bins) // 2 * 2]
    return [int(np.float32(int(number) + 0.5) * steps[place % 2]) for place, number in enumerate(whole)]


def _ascii(label: str) -> str:
    return label.encode("ascii", "ignore").decode("ascii")
