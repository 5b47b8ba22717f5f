"""Held-out pages as files, clean and degraded, with checks that follow from what stands on them.

python training/nougat/page_checks.py pages         # draws them: pages/clean, pages/degraded, and their .jsonl files
vlm eval pages --checks pages/clean.jsonl --checks pages/degraded.jsonl --json scores.json
python training/nougat/page_checks.py --card scores.json    # writes the pass rates into the model's card

Degraded is what a copier does: the page lies askew by up to 1.5 degrees, has noise, and is a JPEG of low quality.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from training.nougat.export import add_to_card
from training.nougat.typesetting import fonts
from training.nougat.typesetting.pages import KINDS, Renderer
from training.nougat.typesetting.text import word_table

ASSET = Path(__file__).resolve().parents[2] / "vlm" / "assets" / "mini-nougat"
MARKUP = set("*_\\|<>[]^")  # a phrase has none: what these are read as depends on what stands around them
PHRASE = (4, 7)  # words


@dataclass(frozen=True)
class CheckedPage:
    kind: str
    image: Image.Image  # as it is drawn, two to four times the model's size
    text: str


def checked_pages(renderer: Renderer, count: int, seed: int) -> list[CheckedPage]:
    """Returns pages of words that are never in training, the kinds in turn."""
    rng, pages = random.Random(seed), []
    for i in range(count):
        kind, scale = KINDS[i % len(KINDS)], rng.choice((2, 3, 4))
        sample = renderer.sample(rng, kind, max_chars=rng.randint(180, 285), held_out=True, scale=scale)
        pages.append(CheckedPage(kind, sample.page.image, sample.text))
    return pages


def degraded(image: Image.Image, rng: random.Random) -> Image.Image:
    """Returns the page askew, with noise; it is to be saved as a JPEG of low quality."""
    angle, paper = rng.choice((-1, 1)) * rng.uniform(0.3, 1.5), image.getpixel((0, 0))
    askew = image.rotate(angle, Image.Resampling.BICUBIC, expand=True, fillcolor=paper)
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(6, 18), (askew.height, askew.width))
    return Image.fromarray(np.clip(np.asarray(askew) + noise, 0, 255).astype(np.uint8))


def checks(page: CheckedPage, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yields facts about a page, without its name."""
    phrases = [phrase for block in page.text.split("\n\n") if (phrase := _phrase(block, rng))]
    for phrase in phrases:
        yield {"type": "present", "text": phrase}
    if phrases:
        yield {"type": "absent", "text": _altered(rng.choice(phrases), page.text, rng)}
    for before, after in pairwise(phrases):
        yield {"type": "order", "before": before, "after": after, "max_diffs": 1}
    for block in page.text.split("\n\n"):
        if block.startswith("|"):
            yield from _of_table([[cell.strip() for cell in line[1:-1].split("|")] for line in block.split("\n")], rng)
    yield {"type": "baseline"}


def _phrase(block: str, rng: random.Random) -> str | None:
    """Returns some words of a block in a row; None where it has no plain ones, or is a table."""
    lines = [line.lstrip("#-0123456789. ") for line in block.split("\n")]
    words = max((line.split() for line in lines), key=len)
    length = min(len(words), rng.randint(*PHRASE))
    starts = [i for i in range(len(words) - length + 1) if not MARKUP & set("".join(words[i : i + length]))]
    phrase = " ".join(words[(at := rng.choice(starts)) : at + length]) if starts else ""
    return phrase if len(phrase) > 4 and not block.startswith("|") else None


def _altered(phrase: str, text: str, rng: random.Random) -> str:
    """Returns a phrase with another word in it, which the page does not have."""
    words, others = phrase.split(), [word for word in word_table(True)[0] if word.isalpha() and word not in text]
    words[rng.randrange(len(words))] = rng.choice(others)
    return " ".join(words)


def _of_table(rows: list[list[str]], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yields a cell with its neighbours for each row but the first; rows[1] is the rule."""
    head, _, *body = rows
    for above, row in zip([head, *body], body, strict=False):
        column = rng.randrange(1, len(row))
        yield {"type": "table", "cell": row[column], "up": above[column], "left": row[column - 1],
               "top_heading": head[column]}  # fmt: skip


def write(renderer: Renderer, folder: Path, count: int, seed: int = 17) -> None:
    """Writes clean/ and degraded/, and clean.jsonl and degraded.jsonl, which hold the same facts."""
    rng, records = random.Random(seed), {"clean": [], "degraded": []}
    for state in records:
        (folder / state).mkdir(parents=True, exist_ok=True)
    for i, page in enumerate(checked_pages(renderer, count, seed)):
        facts = list(checks(page, rng))
        page.image.save(folder / "clean" / f"{i:03}.png", optimize=True)
        degraded(page.image, rng).save(folder / "degraded" / f"{i:03}.jpg", quality=rng.randint(15, 50))
        for state, suffix in (("clean", "png"), ("degraded", "jpg")):
            place = {"pdf": f"{state}/{i:03}.{suffix}", "page": 1}
            ids = ({"id": f"{state}-{page.kind}-{i:03}-{number}"} for number in range(len(facts)))
            records[state] += [{**place, **own, **fact} for own, fact in zip(ids, facts, strict=True)]
    for state, rows in records.items():
        (folder / f"{state}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where pages and checks go")
    parser.add_argument("--pages", type=int, default=56, help="how many, of each state")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--fonts", type=Path, default=fonts.DEFAULT_FOLDER)
    parser.add_argument("--card", type=Path, help="writes these scores into the model's eval.json and card")
    args = parser.parse_args()
    if args.folder:
        write(Renderer(fonts.installed(args.fonts)), args.folder, args.pages, args.seed)
    if args.card:
        scores = json.loads(args.card.read_text(encoding="utf-8"))
        add_to_card(ASSET, checks={"pages": scores["pages"], "rates": by_state(scores["results"])})


def by_state(results: list[dict[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """Returns how many checks have passed, and of how many, by state of the page and kind of check."""
    rates: dict[str, dict[str, list[int]]] = {}
    for result in results:
        for kind in (result["type"], "all"):
            counts = rates.setdefault(result["pdf"].split("/")[0], {}).setdefault(kind, [0, 0])
            counts[0] += result["outcome"] == "passed"
            counts[1] += result["outcome"] != "not judged"
    return rates


if __name__ == "__main__":
    main()
