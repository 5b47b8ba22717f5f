"""Scores of texts against their references, by the libraries that define them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vlm_app.core.packages import library

Scores = dict[str, float]  # each from 0 to 100
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


def _exact(outputs: list[str], references: list[str]) -> Scores:
    equal = sum(a.strip() == b.strip() for a, b in zip(outputs, references, strict=True))
    return {"exact": 100 * equal / len(references)}


def _bleu(outputs: list[str], references: list[str]) -> Scores:
    sacrebleu = _library("bleu")
    kinds = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}
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
