"""`vlm eval`: a model's scores on texts with references, with Hugging Face's beside them on request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlm.errors import InputError
from vlm_app.cli import text_options as texts
from vlm_app.cli.errors import PARTLY_FAILED, command, print_error
from vlm_app.cli.option_groups import LOADING, SAMPLING, takes
from vlm_app.cli.options import Model, ReferenceDType, check_reference_dtype
from vlm_app.cli.progress import Progress
from vlm_app.core.load_options import LoadOptions

if TYPE_CHECKING:
    from rich.table import Table

    from vlm.api.pipeline import Pipeline
    from vlm_app.text.tasks import ToInput

METRICS = {"translate": ("exact", "bleu"), "summarize": ("exact", "rouge")}  # of a task
THRESHOLDS = {"bleu": "bleu", "rouge1": "rouge", "exact": "exact"}  # score -> its metric
HF_BATCH_SIZE = 8
WARM_UP = 200  # pairs before speed is taken
Threshold = Annotated[float | None, typer.Option(help="Exit with 1 below this score (0 to 100).")]


@command
@takes(sampling=SAMPLING, options=LOADING)
def evaluate(
    *,
    data: Annotated[Path, typer.Argument(help="A .tsv (text, tab, reference) or .jsonl (text, reference) file.")],
    model: Model = texts.DEFAULT_TEXT_MODEL,
    task: Annotated[str, typer.Option(help="translate or summarize.")] = "translate",
    metric: Annotated[
        list[str] | None, typer.Option(help="bleu (and chrF), rouge or exact; repeat it. [default: those of the task]")
    ] = None,
    src_lang: Annotated[str | None, typer.Option(help="As in vlm translate.")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="As in vlm translate.")] = None,
    prefix: texts.Prefix = None,
    suffix: texts.Suffix = None,
    truncate: texts.Truncate = False,
    compare_hf: Annotated[bool, typer.Option("--compare-hf", help="Run Hugging Face on the same texts.")] = False,
    reference_dtype: ReferenceDType = None,
    limit: Annotated[int | None, typer.Option(help="The first so many pairs.", min=1)] = None,
    sampling: dict[str, Any],
    bleu_threshold: Threshold = None,
    rouge1_threshold: Threshold = None,
    exact_threshold: Threshold = None,
    out: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    options: LoadOptions,
) -> None:
    """Score a model: BLEU and chrF (sacrebleu) of translations, ROUGE (rouge-score) of summaries, and exact matches.

    A line without a text and a reference, or with a text that the model cannot take, is named on stderr and left out.
    Of several outputs a text (--num-return-sequences) the best one counts. --compare-hf generates with transformers on
    the same token ids and settings, and prints its scores, how many tokens agree, and the speed of both: one
    measurement after a warm-up, Hugging Face in padded batches of 8; vlm bench is what measures speed properly.

    \b
    Examples:
      vlm eval examples/translate.tsv --src-lang en --tgt-lang de --compare-hf
      vlm eval examples/notices.jsonl --task summarize --rouge1-threshold 90
      vlm eval pairs.tsv --prefix "" --metric bleu --metric rouge --limit 500 --json scores.json
    """
    from vlm_app.text.pairs import read_pairs
    from vlm_app.text.scores import check_installed

    check_reference_dtype(reference_dtype, None if compare_hf else "--compare-hf")
    thresholds = {"bleu": bleu_threshold, "rouge1": rouge1_threshold, "exact": exact_threshold}
    metrics = _metrics(task, metric, thresholds)
    check_installed(metrics)
    if compare_hf:
        from vlm_app.text.evaluation import check_comparable

        check_comparable(sampling)
    texts.check_output("--json", out, [data])
    pairs, errors = read_pairs(data, limit)
    folder = _hf_folder(model) if compare_hf else None
    pipeline = texts.load_text_model(model, options)
    framing = (src_lang, tgt_lang, prefix, truncate, suffix)
    result = {"model": model, **_run(pipeline, task, framing, pairs, sampling, metrics, folder, reference_dtype)}
    result["left_out"] = [*errors, *result["left_out"]]
    _print(result)
    if out is not None:
        _write(out, result)
    _judge(result["vlm"]["scores"], thresholds)


def _metrics(task: str, given: list[str] | None, thresholds: dict[str, float | None]) -> tuple[str, ...]:
    """InputError for names that are unknown and for thresholds of what is not measured."""
    if task not in METRICS:
        raise InputError(f"--task is {task!r}; allowed are {', '.join(METRICS)}.")
    metrics = tuple(dict.fromkeys(given or METRICS[task]))
    known = sorted({name for names in METRICS.values() for name in names})
    if unknown := [name for name in metrics if name not in known]:
        raise InputError(f"--metric is {unknown[0]!r}; allowed are {', '.join(known)}.")
    for name, metric in THRESHOLDS.items():
        if thresholds[name] is not None and metric not in metrics:
            why = f"--metric {' '.join(metrics)}" if given else f"--task {task}"
            raise InputError(f"--{name}-threshold does not go with {why}; add --metric {metric}.")
    return metrics


def _hf_folder(model: str) -> Path:
    from vlm.build.store import locate

    with Progress() as progress:
        source = locate(model, progress=progress)
    if source.kind != "hf":
        what = f"a {source.kind} of ours" if source.kind in ("engine", "checkpoint") else f"a {source.kind} model"
        raise InputError(f"--compare-hf needs Hugging Face's weights; {model} is {what}.")
    return source.path


def _run(
    pipeline: Pipeline, task: str, framing: tuple[Any, ...], pairs: list[Any], sampling: dict[str, Any],
    metrics: tuple[str, ...], folder: Path | None, reference_dtype: str | None,
) -> dict[str, Any]:  # fmt: skip
    from vlm_app.text.evaluation import agreement, outputs, run_hugging_face, run_vlm

    to_input = _to_input(pipeline, task, *framing)
    if folder is not None:
        run_vlm(pipeline, pairs[:WARM_UP], to_input, sampling)  # kernels and graphs are made at first use
    ours, pairs, errors = run_vlm(pipeline, pairs, to_input, sampling)
    references, theirs = [pair.reference for pair in pairs], None
    result = {"task": task, "pairs": len(pairs), "left_out": errors, "dtype": pipeline.engine.build.dtype}
    result |= {"device": str(pipeline.device), "sampling": sampling}
    result["vlm"] = {**ours.summary(metrics, references), "batch_size": pipeline.capabilities.max_batch_size}
    if folder is not None:
        dtype = reference_dtype or pipeline.engine.build.dtype
        theirs = run_hugging_face(folder, pipeline, pairs, to_input, sampling, HF_BATCH_SIZE, dtype)
        result["hf"] = {**theirs.summary(metrics, references), "batch_size": HF_BATCH_SIZE, "dtype": dtype}
        result["agreement"] = agreement(ours, theirs)
    return result | {"outputs": outputs(pairs, ours, theirs)}


def _to_input(
    pipeline: Pipeline,
    task: str,
    source: str | None,
    target: str | None,
    prefix: str | None,
    truncate: bool,
    suffix: str | None,
) -> ToInput:
    from vlm_app.text.tasks import summary, translation

    if task == "translate":
        return translation(pipeline, source, target, prefix, truncate, suffix)
    if source or target:
        raise InputError("--src-lang and --tgt-lang go with --task translate.")
    return summary(pipeline, prefix, truncate, suffix)


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console

    for reason in result["left_out"]:
        print_error(f"left out: {reason}.")
    left_out = f" ({len(result['left_out'])} left out)" if result["left_out"] else ""
    print(f"{result['model']}, {result['task']}, {result['pairs']} pairs{left_out}, {result['dtype']}")
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 100).print(_table(result))
    if same := result.get("agreement"):
        print(f"token agreement {same['tokens']:.2f}%, texts with the same tokens {same['texts']:.2f}%")


def _table(result: dict[str, Any]) -> Table:
    from rich.table import Table

    systems = {name: result[key] for key, name in (("vlm", "vlm"), ("hf", "Hugging Face")) if key in result}
    table = Table()
    table.add_column("speed: one measurement")
    for name, system in systems.items():
        dtype = system.get("dtype", result["dtype"])
        other = "" if dtype == result["dtype"] else f", {dtype}"
        table.add_column(f"{name}{other}, batch {system['batch_size']}", justify="right")
    for name in result["vlm"]["scores"]:
        table.add_row(name, *(f"{system['scores'][name]:.2f}" for system in systems.values()))
    for name, label in (("texts_per_s", "texts/s, once"), ("tokens_per_s", "tokens/s, once")):
        table.add_row(label, *(f"{system[name]:.1f}" for system in systems.values()))
    return table


def _write(out: Path, result: dict[str, Any]) -> None:
    try:
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--json {out} cannot be written: {error.strerror}.") from None


def _judge(scores: dict[str, float], thresholds: dict[str, float | None]) -> None:
    missed = [f"{name} {scores[name]:.2f} is below {least:g}" for name, least in thresholds.items()
              if least is not None and scores[name] < least]  # fmt: skip
    if missed:
        print_error("; ".join(missed) + ".")
        raise typer.Exit(PARTLY_FAILED)
