"""Scores of texts against their references, by the libraries that define them."""

from __future__ import annotations

from vlm.errors import InputError

Scores = dict[str, float]  # each from 0 to 100


def scores(task: str, outputs: list[str], references: list[str]) -> Scores:
    """exact (share of equal texts), and BLEU and chrF of a translation, ROUGE of a summary. InputError when the library
    is not installed."""
    exact = sum(a.strip() == b.strip() for a, b in zip(outputs, references, strict=True))
    of_task = _bleu if task == "translate" else _rouge
    return {"exact": 100 * exact / len(references), **of_task(outputs, references)}


def _bleu(outputs: list[str], references: list[str]) -> Scores:
    try:
        import sacrebleu
    except ImportError:
        raise _missing("sacrebleu") from None
    kinds = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}
    return {name: float(score(outputs, [references]).score) for name, score in kinds.items()}


def _rouge(outputs: list[str], references: list[str]) -> Scores:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise _missing("rouge-score") from None
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names, use_stemmer=True)
    found = [scorer.score(reference, output) for output, reference in zip(outputs, references, strict=True)]
    return {name: 100 * sum(f[name].fmeasure for f in found) / len(found) for name in names}


def _missing(package: str) -> InputError:
    return InputError(f"{package} is not installed; pip install 'vlm[eval]' brings what vlm eval needs.")
