"""`vlm eval`: a model's scores on texts with references, with Hugging Face's beside them on request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import text_options as texts
from app.cli.errors import PARTLY_FAILED, complain, verb
from app.cli.options import Device, DType, MaxBatchSize, MaxNewTokens, Model
from vlm.errors import InputError

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

TASKS = ("translate", "summarize")
HF_BATCH_SIZE = 8
WARM_UP = 200  # pairs before speed is taken
Threshold = Annotated[float | None, typer.Option(help="Exit with 1 below this score (0 to 100).")]


@verb
def evaluate(
    data: Annotated[Path, typer.Argument(help="A .tsv (text, tab, reference) or .jsonl (text, reference) file.")],
    model: Model = texts.DEFAULT_TEXT_MODEL,
    task: Annotated[str, typer.Option(help="translate or summarize.")] = "translate",
    src_lang: Annotated[str | None, typer.Option(help="As in vlm translate.")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="As in vlm translate.")] = None,
    prefix: texts.Prefix = None,
    truncate: texts.Truncate = False,
    compare_hf: Annotated[bool, typer.Option("--compare-hf", help="Run Hugging Face on the same texts.")] = False,
    limit: Annotated[int | None, typer.Option(help="The first so many pairs.", min=1)] = None,
    num_beams: texts.NumBeams = None,
    length_penalty: texts.LengthPenalty = None,
    max_new_tokens: MaxNewTokens = None,
    no_repeat_ngram_size: texts.NoRepeatNgramSize = None,
    bleu_threshold: Threshold = None,
    rouge1_threshold: Threshold = None,
    exact_threshold: Threshold = None,
    out: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    device: Device = "auto",
    dtype: DType = None,
    max_batch_size: MaxBatchSize = None,
) -> None:
    """Score a model: BLEU and chrF (sacrebleu) of translations, ROUGE (rouge-score) of summaries, and exact matches.

    --compare-hf generates with transformers on the same token ids and settings, and prints its scores, how many tokens
    agree, and the speed of both: one measurement after a warm-up, Hugging Face in padded batches of 8; vlm bench is
    what measures speed properly.

    \b
    Examples:
      vlm eval examples/translate.tsv --src-lang en --tgt-lang de --compare-hf
      vlm eval examples/notices.jsonl --task summarize --rouge1-threshold 90
    """
    from app.text.pairs import read_pairs

    sampling = texts.sampling_of(num_beams=num_beams, length_penalty=length_penalty, max_new_tokens=max_new_tokens,
                                 no_repeat_ngram_size=no_repeat_ngram_size)  # fmt: skip
    thresholds = {"bleu": bleu_threshold, "rouge1": rouge1_threshold, "exact": exact_threshold}
    _check(task, thresholds)
    pairs, wrong = read_pairs(data, limit)
    for reason in wrong:
        complain(f"left out: {reason}.")
    folder = _hf_folder(model) if compare_hf else None
    pipeline = texts.load_text_model(model, device, dtype, max_batch_size)
    asked = (src_lang, tgt_lang, prefix, truncate)
    result = _run(pipeline, task, asked, pairs, sampling, folder) | {"model": model, "left_out": len(wrong)}
    _print(result)
    if out is not None:
        _write(out, result)
    _judge(result["vlm"]["scores"], thresholds)


def _check(task: str, thresholds: dict[str, float | None]) -> None:
    if task not in TASKS:
        raise InputError(f"--task is {task!r}; allowed are {', '.join(TASKS)}.")
    other = "rouge1" if task == "translate" else "bleu"
    if thresholds[other] is not None:
        raise InputError(f"--{other}-threshold does not go with --task {task}.")


def _hf_folder(model: str) -> Path:
    from vlm.resolve import locate

    source = locate(model)
    if source.kind != "hf":
        raise InputError(f"--compare-hf needs Hugging Face's weights; {model} is a {source.kind} of ours.")
    return source.path


def _run(
    pipeline: Pipeline, task: str, asked: tuple[Any, ...], pairs: list[Any], sampling: dict[str, Any],
    folder: Path | None,
) -> dict[str, Any]:  # fmt: skip
    from app.text.evaluation import agreement, run_hugging_face, run_vlm
    from app.text.tasks import summary, translation

    source, target, prefix, truncate = asked
    if task == "translate":
        to_input = translation(pipeline, source, target, prefix, truncate)
    elif source or target:
        raise InputError("--src-lang and --tgt-lang go with --task translate.")
    else:
        to_input = summary(pipeline, prefix, truncate)
    references = [pair.reference for pair in pairs]
    if folder is not None:
        run_vlm(pipeline, pairs[:WARM_UP], to_input, sampling)  # kernels and graphs are made at first use
    ours = run_vlm(pipeline, pairs, to_input, sampling)
    result = {"task": task, "pairs": len(pairs), "dtype": pipeline.engine.build.dtype, "device": str(pipeline.device)}
    result["vlm"] = ours.summary(task, references)
    if folder is not None:
        theirs = run_hugging_face(folder, pipeline, pairs, to_input, sampling, HF_BATCH_SIZE)
        result |= {"hf": theirs.summary(task, references), "agreement": agreement(ours, theirs)}
    return result


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    ours, theirs = result["vlm"], result.get("hf")
    table = Table(title=f"{result['model']}, {result['task']}, {result['pairs']} pairs, {result['dtype']}")
    table.add_column("")
    for name in ("vlm", "Hugging Face") if theirs else ("vlm",):
        table.add_column(name, justify="right")
    systems = [ours, theirs] if theirs else [ours]
    for name in ours["scores"]:
        table.add_row(name, *(f"{system['scores'][name]:.2f}" for system in systems))
    for name, label in (("texts_per_s", "texts/s, once"), ("tokens_per_s", "tokens/s, once")):
        table.add_row(label, *(f"{system[name]:.1f}" for system in systems))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 100).print(table)
    if theirs:
        same = result["agreement"]
        print(f"token agreement {same['tokens']:.2f}%, texts with the same tokens {same['texts']:.2f}%")


def _write(out: Path, result: dict[str, Any]) -> None:
    try:
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--json {out} cannot be written: {error.strerror}.") from None


def _judge(scores: dict[str, float], thresholds: dict[str, float | None]) -> None:
    missed = [f"{name} {scores[name]:.2f} is below {least:g}" for name, least in thresholds.items()
              if least is not None and scores[name] < least]  # fmt: skip
    if missed:
        complain("; ".join(missed) + ".")
        raise typer.Exit(PARTLY_FAILED)
