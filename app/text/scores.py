"""Scores of texts against their references, by the libraries that define them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

from vlm.errors import VlmWarning
from vlm_app.core.packages import library

Scores = dict[str, float]  # each from 0 to 100
MANY = 100  # texts that end as split ones do, of which sacrebleu warns
LIBRARIES = {"bleu": ("sacrebleu", "sacrebleu"), "rouge": ("rouge_score.rouge_scorer", "rouge-score")}


def scores(metrics: Iterable[str], outputs: list[str], references: list[str]) -> Scores:
    """Returns the scores of METRICS: exact (share of equal texts); bleu and chrf; rouge1, rouge2 and rougeL. InputError
    when a library is not installed."""
    return {name: x for metric in metrics for name, x in METRICS[metric](outputs, references).items()}


def check_installed(metrics: Iterable[str]) -> None:
    """Raises InputError when a library is not installed."""
    for metric in metrics:
        if metric in LIBRARIES:
            _library(metric)


def warn_of_split_words(metrics: Iterable[str], outputs: list[str]) -> None:
    """Warns of texts whose words are split, which BLEU counts in another way. It is sacrebleu's own warning, which is
    of each system's texts, and names an option that no verb has."""
    if "bleu" in metrics and sum(text.endswith(" .") for text in outputs) >= MANY:
        warnings.warn(
            f"{MANY} outputs or more end in a period that stands apart, as texts do whose words are split: compare"
            " their BLEU with that of such texts alone.",
            VlmWarning,
            stacklevel=2,
        )


def _exact(outputs: list[str], references: list[str]) -> Scores:
    equal = sum(a.strip() == b.strip() for a, b in zip(outputs, references, strict=True))
    return {"exact": 100 * equal / len(references)}


def _bleu(outputs: list[str], references: list[str]) -> Scores:
    sacrebleu = _library("bleu")
    kinds = {"bleu": partial(sacrebleu.corpus_bleu, force=True), "chrf": sacrebleu.corpus_chrf}
    return {name: float(score(outputs, [references]).score) for name, score in kinds.items()}


def _rouge(outputs: list[str], references: list[str]) -> Scores:
    names = ("rouge1", "rouge2", "rougeL")
    scorer = _library("rouge").RougeScorer(names, use_stemmer=True)
    results = [scorer.score(reference, output) for output, reference in zip(outputs, references, strict=True)]
    return {name: 100 * sum(f[name].fmeasure for f in results) / len(results) for name in names}


def _library(metric: str) -> Any:
    module, package = LIBRARIES[metric]
    return library(module, package, extra="eval", verb="vlm eval")


METRICS = {"exact": _exact, "bleu": _bleu, "rouge": _rouge}
