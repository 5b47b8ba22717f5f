"""Example files from the held-out part: lines to translate, notices to summarize."""

from __future__ import annotations

import json
import random
from pathlib import Path

from training.t5 import tasks

COUNTS = {"numbers": 7, "dates": 5, "times": 5, "prices": 5, "sentences": 18}


def write_examples(folder: Path, seed: int = 2) -> None:
    rng, lines = random.Random(seed), []
    for group, count in COUNTS.items():
        examples = tasks.held_out(rng, group, "held-out", count)
        lines += [(e.source, e.target) for e in examples if e.source.startswith(tasks.TO_GERMAN)]
    text = "".join(f"{source.removeprefix(tasks.TO_GERMAN)}\t{target}\n" for source, target in lines)
    (folder / "translate.tsv").write_text(text, encoding="utf-8")
    rows = [
        {"text": e.source.removeprefix(tasks.SUMMARIZE), "summary": e.target}
        for e in tasks.held_out(rng, "notices", "held-out", 12)
    ]
    notices = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "notices.jsonl").write_text(notices, encoding="utf-8")
