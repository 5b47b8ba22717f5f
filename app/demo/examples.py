"""Examples that come with the package: the checkout's, which a link puts beside this file."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = (Path(__file__).parent / "examples").resolve()
QUESTIONS, NOTICES = 6, 2
SENTENCES = ("The old ship is small.", "twenty-five past three", "on Monday at 10:09 a.m.")


def questions() -> list[dict[str, object]]:
    """Returns questions about rendered scenes, as a box for text and files takes them."""
    scenes = [json.loads(line) for line in _lines("scenes.jsonl")]
    return [{"text": each["question"], "files": [str(FOLDER / each["image"])]} for each in scenes[::2][:QUESTIONS]]


def pages() -> list[str]:
    return [str(FOLDER / name) for name in ("page.png", "math.png", "table.png", "pages.pdf")]


def notices() -> list[str]:
    """Returns texts to be summarized."""
    return [json.loads(line)["text"] for line in _lines("notices.jsonl")[:NOTICES]]


def _lines(name: str) -> list[str]:
    return (FOLDER / name).read_text(encoding="utf-8").splitlines()
