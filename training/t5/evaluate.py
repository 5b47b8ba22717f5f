"""Held-out lines, greedy answers, exact match and ROUGE-L."""

from __future__ import annotations

import collections
import random

import torch
from tokenizers import Tokenizer

from training.t5 import notices, tasks
from training.t5.notice_kinds import KINDS
from training.t5.tokens import EOS, PAD

SETS = {"held-out": tuple(tasks.GROUPS), "new combinations": ("sentences",)}
BEYOND = "beyond training"


def held_out_examples(count: int, seed: int) -> dict[str, list[tasks.Example]]:
    """`count` lines of each group, by set; fewer of what lies beyond what training shows."""
    rng = random.Random(seed)
    found = {kind: [e for g in groups for e in tasks.held_out(rng, g, kind, count)] for kind, groups in SETS.items()}
    return found | {BEYOND: beyond_training(rng, count // 4)}


def beyond_training(rng: random.Random, count: int) -> list[tasks.Example]:
    """Notices with more distractors, and with names that the syllables of training's do not make up."""
    kinds = {"notices, 4 to 6 distractors": {"distractors": (4, 5, 6)}, "notices, other names": {"any_letters": True}}
    drawn = [(g, notices.notice(rng, KINDS, **options)) for g, options in kinds.items() for _ in range(count)]
    return [tasks.Example(group, tasks.SUMMARIZE + text, summary) for group, (_, text, summary) in drawn]


@torch.inference_mode()
def answer(model, tokenizer: Tokenizer, sources: list[str], device: torch.device, batch_size: int = 512) -> list[str]:
    """Greedy, by Hugging Face's generate, similar lengths together."""
    rows = [e.ids for e in tokenizer.encode_batch(sources)]
    order, texts = sorted(range(len(rows)), key=lambda i: len(rows[i])), [""] * len(rows)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        width = max(len(rows[i]) for i in chosen)
        ids = torch.tensor([rows[i] + [PAD] * (width - len(rows[i])) for i in chosen], device=device)
        out = model.generate(
            input_ids=ids, attention_mask=(ids != PAD).long(), do_sample=False, num_beams=1, max_length=128
        )
        for i, row in zip(chosen, out[:, 1:].tolist(), strict=True):
            texts[i] = tokenizer.decode(row[: row.index(EOS)] if EOS in row else row)
    return texts


def score(examples: list[tasks.Example], texts: list[str]) -> dict[str, dict]:
    """By group: lines, share of them exactly right, and mean ROUGE-L."""
    exact, rouge = collections.defaultdict(list), collections.defaultdict(list)
    for example, text in zip(examples, texts, strict=True):
        exact[example.group].append(text == example.target)
        rouge[example.group].append(rouge_l(example.target, text))
    mean = lambda values: round(sum(values) / len(values), 4)  # noqa: E731
    return {g: {"lines": len(exact[g]), "exact": mean(exact[g]), "rouge_l": mean(rouge[g])} for g in exact}


def rouge_l(reference: str, text: str) -> float:
    """F1 of the longest common subsequence of words (Lin, 2004), split at spaces."""
    a, b = reference.split(), text.split()
    if not a or not b:
        return float(a == b)
    row = [0] * (len(b) + 1)
    for word in a:
        previous = 0
        for j, other in enumerate(b):
            here = row[j + 1]
            row[j + 1] = previous + 1 if word == other else max(here, row[j])
            previous = here
    return 2 * row[-1] / (len(a) + len(b))
