"""A model on texts with references: outputs, scores and speed; the same by Hugging Face beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError, listed
from vlm.options import flag_of
from vlm.requests.sampling_params import SamplingParams
from vlm_app.text.job import in_order
from vlm_app.text.scores import Scores, scores
from vlm_app.text.sources import Item
from vlm_app.text.tasks import ToInput

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm_app.text.pairs import Pair

# settings that Hugging Face is given, too
COMPARED = ("max_new_tokens", "max_length", "min_new_tokens", "num_beams", "length_penalty", "early_stopping",
            "repetition_penalty", "no_repeat_ngram_size", "bad_words", "bad_words_ids", "stop_token_ids",
            "forced_bos_token_id", "forced_eos_token_id", "seed")  # fmt: skip


# one output a text, the same at each run, though the model's own settings may sample
SCORED = {"temperature": 0.0, "num_return_sequences": 1}


@dataclass(frozen=True)
class Run:
    """One system's outputs."""

    texts: list[str]
    token_ids: list[list[int]]  # generated, up to and with the end token
    seconds: float

    def summary(self, metrics: Iterable[str], references: list[str]) -> dict[str, Any]:
        tokens = sum(map(len, self.token_ids))
        speed = {"texts_per_s": len(self.texts) / self.seconds, "tokens_per_s": tokens / self.seconds}
        results: Scores = scores(metrics, self.texts, references)
        return {"scores": results, "seconds": self.seconds, **speed}


def run_vlm(
    pipeline: Pipeline, pairs: list[Pair], to_input: ToInput, sampling: dict[str, Any]
) -> tuple[Run, list[Pair], list[str]]:
    """Returns the outputs, the pairs that they belong to, and what is wrong with the others. InputError when all are
    wrong."""
    sampling = SCORED | sampling
    items = (Item(pair.place, None, pair.text, fields=_images(pair)) for pair in pairs)
    outputs, valid, errors, start = [], [], [], time.perf_counter()
    for pair, (_, result) in zip(pairs, in_order(pipeline, items, to_input, sampling), strict=True):
        if isinstance(result, str):
            errors.append(f"{pair.place}: {result.rstrip('.')}")
        else:
            outputs.append(result)
            valid.append(pair)
    seconds = time.perf_counter() - start
    if not valid:
        raise InputError(f"no text of the data can be given to the model; {errors[0]}.")
    return Run([out.text for out in outputs], [out.token_ids for out in outputs], seconds), valid, errors


def _images(pair: Pair) -> dict[str, Any]:
    return {"images": list(pair.images)} if pair.images else {}


def check_comparable(sampling: dict[str, Any]) -> None:
    """Raises InputError for options that Hugging Face is not run with beside us."""
    plain = SamplingParams()
    if unsupported := [n for n, value in sampling.items() if n not in COMPARED and value != getattr(plain, n)]:
        names = [flag_of(SamplingParams, name) for name in unsupported]
        raise InputError(f"--compare-hf is of one likeliest output a text; leave {listed(names)} out.")


def run_hugging_face(
    folder: Path,
    pipeline: Pipeline,
    pairs: list[Pair],
    to_input: ToInput,
    sampling: dict[str, Any],
    batch_size: int,
    dtype: str,
) -> Run:
    """Runs the same token ids through transformers' own generate, in batches: same device and settings."""
    from vlm_app.reference.batches import BatchedReference

    reference = BatchedReference.load(folder, pipeline, dtype, batch_size)
    request = lambda pair: pipeline.request(to_input(pair.text), **(SCORED | sampling))  # noqa: E731
    reference.tokens([request(pair) for pair in pairs[:batch_size]])  # warm-up
    # from text to text, as ours is timed
    start = time.perf_counter()
    token_ids = reference.tokens([request(pair) for pair in pairs])
    assert pipeline.tokenizer is not None  # it made the ids of the texts
    texts = [pipeline.tokenizer.decode(tokens) for tokens in token_ids]
    return Run(texts, token_ids, time.perf_counter() - start)


def agreement(ours: Run, theirs: Run) -> dict[str, float]:
    """Shares from 0 to 100: of texts with the same tokens, and of tokens that are the same at their place."""
    pairs = list(zip(ours.token_ids, theirs.token_ids, strict=True))
    same = sum(x == y for a, b in pairs for x, y in zip(a, b, strict=False))
    total = sum(max(len(a), len(b)) for a, b in pairs)
    return {"texts": 100 * sum(a == b for a, b in pairs) / len(pairs), "tokens": 100 * same / total}


def outputs(pairs: list[Pair], ours: Run, theirs: Run | None) -> list[dict[str, Any]]:
    """Returns the texts for people to look at."""
    rows = [
        {**_images(pair), "text": pair.text, "reference": pair.reference, "vlm": text}
        for pair, text in zip(pairs, ours.texts, strict=True)
    ]
    if theirs is not None:
        rows = [{**row, "hf": text} for row, text in zip(rows, theirs.texts, strict=True)]
    return rows
