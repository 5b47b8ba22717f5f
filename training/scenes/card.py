"""What is written beside the weights: results, the model card, example pictures."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from training.scenes import scene as scenes
from training.scenes.loader import HELD_OUT
from training.scenes.questions import ask
from training.scenes.scene import COLOURS, SHAPES

ABOUT = {
    "mini-llava": (
        "LLaVA-1.5's architecture and class, only smaller: a CLIP tower of 6 layers (features are taken after the"
        " fifth), a projector of two layers and a LLaMA of 5",
        "`USER: <image>\\n{question} ASSISTANT:` (its chat template), several turns about one picture",
        "llava",
    ),
    "mini-blip2": (
        "BLIP-2's architecture and class, only smaller: a ViT of 5 layers, a Q-Former of 3 with 32 queries, and a T5 of"
        " 3 + 3",
        "`Question: {question} Answer:` after the picture's queries",
        "blip-2",
    ),
}
CARD = """---
license: apache-2.0
pipeline_tag: image-text-to-text
library_name: transformers
language: [en]
tags: [{tag}, visual-question-answering]
---

# {name}

{about}: 6.9M parameters, trained from scratch on rendered scenes. It is packaged so that vlm can be tried and tested
without a download, on weights that mean something.

It reads {form}.

**It can** answer short questions about pictures of its own kind: 1 to 6 plain shapes ({shapes}) in {colours},
and at times a sign with a word of 2 to 5 capitals or digits. It is asked to count objects, to name colours and shapes,
to compare positions (left, right, above, below) and to read the sign; how well it does each says the table.{guesses}
**It cannot** do anything else: it has never seen a photograph, knows no other words, and answers all the same. Pictures
are made {size} × {size} pixels small.

## Figures

Greedy decoding of the published float16 weights, computed in float32; the answer is compared as a whole (`eval.json`).
{scenes:,} scenes that training never shows (seeds of their own), drawn by the same program: the figures say nothing
about pictures of other origin.

| kind | questions | exact |
| --- | ---: | ---: |
{rows}

`python training/mini_vlm.py {name}` reproduces it{facts}.
"""


def write_results(folder: Path, results: dict, facts: dict) -> None:
    path = folder / "eval.json"
    facts = facts or (json.loads(path.read_text()).get("training", {}) if path.exists() else {})
    path.write_text(json.dumps({"results": results, "training": facts}, indent=2) + "\n", encoding="utf-8")


def write_card(folder: Path, name: str) -> None:
    held = json.loads((folder / "eval.json").read_text())
    results, facts = held["results"], held["training"]
    about, form, tag = ABOUT[name]
    rows = "\n".join(f"| {kind} | {r['questions']} | {100 * r['exact']:.2f}% |" for kind, r in results.items())
    seen = f": {facts['seconds']:.0f} s on one H200, {facts['scenes'] / 1e6:.1f}M scenes" if facts else ""
    seen += f"; {facts['note']}" if facts and "note" in facts else ""
    number = results["all"]["questions"] // 4
    weak = [kind for kind, result in results.items() if result["exact"] < 0.9 and kind != "all"]
    guesses = f" On {' and '.join(weak)} it often guesses: it has not learnt all of that yet." if weak else ""
    names = {"shapes": ", ".join(SHAPES), "colours": ", ".join(COLOURS)}
    text = CARD.format(
        name=name,
        about=about,
        form=form,
        tag=tag,
        rows=rows,
        facts=seen,
        scenes=number,
        size=scenes.SIZE,
        guesses=guesses,
        **names,
    )
    parts = [part if part.startswith(("---", "|", "#")) else textwrap.fill(part, 119) for part in text.split("\n\n")]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def write_examples(folder: Path) -> None:
    """Three held-out scenes at four times the models' size, and what may be asked about them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, number = [], 0
    for seed in range(HELD_OUT + 10**6, HELD_OUT + 10**6 + 200):
        scene = scenes.make(seed)
        if scene.sign and len(scene.objects) >= 4 and number < 3:
            number += 1
            name = f"scene{number}.png"
            scenes.picture(scene, size=4 * scenes.SIZE, scale=2).save(folder / name)
            kinds = {kind: (question, answer) for kind, question, answer in ask(scene, 20, seed)}
            for kind in ("count", "colour", "shape", "position", "read"):
                if kind in kinds:
                    question, answer = kinds[kind]
                    lines.append(json.dumps({"image": name, "question": question, "answer": answer}))
    (folder / "scenes.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
