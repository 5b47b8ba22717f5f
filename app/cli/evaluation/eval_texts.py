"""`vlm eval texts`: a model's scores on texts with references, with Hugging Face's beside them on request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlm.errors import InputError, counted
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.display.result_file import write_result
from vlm_app.cli.errors import PARTLY_FAILED, command, print_error
from vlm_app.cli.evaluation.scoring import Scoring
from vlm_app.cli.options import decoding
from vlm_app.cli.options import texts as text_options
from vlm_app.cli.options.common import MODEL_HELP, Against, ReferenceDType, check_reference
from vlm_app.cli.options.groups import LOADING_ADAPTERS, SAMPLING, Group, takes
from vlm_app.cli.options.idle import warn_of_idle
from vlm_app.core.load_options import LoadOptions

if TYPE_CHECKING:
    from rich.table import Table

    from vlm.api.pipeline import Pipeline
    from vlm_app.text.pairs import Pair
    from vlm_app.text.tasks import ToInput

HF_BATCH_SIZE = 8
WARM_UP = 200  # pairs before speed is taken
SHOWN = f"{text_options.DEFAULT_TEXT_MODEL}; with --task answer the packaged one that is asked"
AS_IN_TRANSLATE = {"help": "As in vlm translate."}


@command
@takes(
    scoring=Group.making(Scoring), sampling=SAMPLING, options=LOADING_ADAPTERS,
    framing=Group.making(text_options.Framing).without("decoder_prompt_token_ids").changed(
        src_lang=AS_IN_TRANSLATE, tgt_lang=AS_IN_TRANSLATE
    ),
)  # fmt: skip
def texts(
    *,
    data: Annotated[
        Path, typer.Argument(help="A .tsv (text, tab, reference) or .jsonl (text, reference; question, answer) file.")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help=MODEL_HELP, show_default=SHOWN),
    ] = None,
    scoring: Scoring,
    framing: text_options.Framing,
    compare_hf: Annotated[bool, typer.Option("--compare-hf", help="Run Hugging Face on the same texts.")] = False,
    against: Against = None,
    reference_dtype: ReferenceDType = None,
    sampling: dict[str, Any],
    out: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    options: LoadOptions,
) -> None:
    """Score a model: BLEU and chrF (sacrebleu) of translations, ROUGE (rouge-score) of summaries, and exact matches.

    With --task answer a line of a .jsonl file has "question" and "answer", and "image" or "images" (paths, from the
    working folder or the file's own) where it asks about some; the share of answers that are exactly the same counts.

    A line without a text and a reference, or with a text that the model cannot take, is named on stderr and left out.
    Of several outputs a text (--num-return-sequences) the best one counts. --compare-hf generates with transformers on
    the same token ids and settings, and prints its scores, how many tokens agree, and the speed of both: one
    measurement after a warm-up, Hugging Face in padded batches of 8 (a decoder's in batches of one length where padding
    would count: without --max-new-tokens, with a penalty of repetition); vlm bench is what measures speed properly.

    \b
    Examples:
      vlm eval examples/translate.tsv --src-lang en --tgt-lang de --compare-hf
      vlm eval pairs.tsv --src-lang en --tgt-lang de --model t5.engine --compare-hf --against google-t5/t5-small
      vlm eval examples/notices.jsonl --task summarize --rouge1-threshold 90
      vlm eval examples/scenes.jsonl --task answer --model mini-llava
      vlm eval pairs.tsv --prefix "" --metric bleu --metric rouge --limit 500 --json scores.json
    """
    from vlm_app.text.evaluation import SCORED
    from vlm_app.text.pairs import read_pairs
    from vlm_app.text.scores import check_installed

    if compare_hf and scoring.task == "answer":
        raise InputError("--compare-hf is of --task translate and summarize; vlm run --check-accuracy takes questions.")
    check_reference(reference_dtype, against, None if compare_hf else "--compare-hf")
    options.check_one_adapter("all texts are scored")
    check_installed(scoring.metrics)
    if compare_hf:
        from vlm_app.text.evaluation import check_comparable

        check_comparable(sampling)
        options.check_base_alone("--compare-hf")
    text_options.check_output("--json", out, [data])
    pairs, errors = read_pairs(data, scoring.limit)
    _check_task(scoring.task, pairs, framing)
    model = _default_model(scoring.task) if model is None else model
    folder = _hf_folder(against or model) if compare_hf else None
    load = decoding.load if scoring.task == "answer" else text_options.load_text_model
    pipeline, sampling = load(model, options), sampling | options.adapter
    warn_of_idle(pipeline, SCORED | sampling, options)
    reference = None if folder is None else _reference(folder, reference_dtype, pipeline)
    result = {"model": model, **_run(pipeline, scoring, framing, pairs=pairs, sampling=sampling, reference=reference)}
    result["left_out"] = [*errors, *result["left_out"]]
    _print(result)
    write_result(result, out)
    _judge(result["vlm"]["scores"], scoring.thresholds)


def _default_model(task: str) -> str:
    """Returns what is scored where no model is named."""
    name = decoding.packaged_chat_model() if task == "answer" else text_options.DEFAULT_TEXT_MODEL
    if name is None:
        raise InputError("--model is missing; name one that answers: --model llava-hf/llava-1.5-7b-hf.")
    return name


def _check_task(task: str, pairs: list[Pair], framing: text_options.Framing) -> None:
    """Raises InputError for images that the task has no use for, and for summaries of which nobody says how they would
    be translations."""
    if task != "answer" and (asking := [pair.place for pair in pairs if pair.images]):
        raise InputError(f"{asking[0]} asks about an image, and --task is {task}; give --task answer.")
    told = (framing.src_lang, framing.tgt_lang, framing.prefix)
    if task == "translate" and pairs[0].is_summary and all(each is None for each in told):
        raise InputError(f"{pairs[0].place} has a summary, and --task is {task}; give --task summarize.")


def _hf_folder(model: str) -> Path:
    from vlm_app.reference.huggingface import folder_of

    with Progress() as progress:
        return folder_of(model, progress=progress)


def _reference(folder: Path, dtype: str | None, pipeline: Pipeline) -> tuple[Path, str]:
    """Returns Hugging Face's folder and the type that it computes in. Raises InputError for another family."""
    from vlm_app.reference.huggingface import check_family

    check_family(folder, pipeline)
    return folder, dtype or pipeline.engine.build.dtype


def _run(
    pipeline: Pipeline, scoring: Scoring, framing: text_options.Framing, pairs: list[Pair], sampling: dict[str, Any],
    reference: tuple[Path, str] | None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the figures; `reference`: Hugging Face's folder and the type that it computes in, where it runs, too."""
    from vlm_app.text.evaluation import agreement, outputs, run_hugging_face, run_vlm
    from vlm_app.text.scores import warn_of_split_words

    to_input = _to_input(pipeline, scoring.task, framing)
    if reference is not None:
        run_vlm(pipeline, pairs[:WARM_UP], to_input, sampling)  # kernels and graphs are made at first use
    ours, pairs, errors = run_vlm(pipeline, pairs, to_input, sampling)
    references, theirs = [pair.reference for pair in pairs], None
    result = {"task": scoring.task, "pairs": len(pairs), "left_out": errors, "dtype": pipeline.engine.build.dtype}
    result |= {"device": str(pipeline.device), "sampling": sampling}
    result["vlm"] = {**ours.summary(scoring.metrics, references), "batch_size": pipeline.capabilities.max_batch_size}
    if reference is not None:
        folder, dtype = reference
        theirs = run_hugging_face(
            folder, pipeline, pairs, to_input=to_input, sampling=sampling, batch_size=HF_BATCH_SIZE, dtype=dtype
        )
        result["hf"] = {**theirs.summary(scoring.metrics, references), "batch_size": HF_BATCH_SIZE, "dtype": dtype}
        result["hf"]["folder"] = str(folder)
        result["agreement"] = agreement(ours, theirs)
    warn_of_split_words(scoring.metrics, ours.texts)
    return result | {"outputs": outputs(pairs, ours, theirs)}


def _to_input(pipeline: Pipeline, task: str, framing: text_options.Framing) -> ToInput:
    """Returns what makes inputs of texts. Raises InputError for languages of a summary."""
    from vlm_app.text.tasks import answer, summary

    if task == "translate":
        return framing.translation(pipeline)
    if framing.src_lang or framing.tgt_lang:
        raise InputError("--src-lang and --tgt-lang go with --task translate.")
    make = answer if task == "answer" else summary
    return make(pipeline, framing.prefix, framing.truncate, framing.suffix)


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console

    for reason in result["left_out"]:
        print_error(f"left out: {reason}.")
    left_out = f" ({len(result['left_out'])} left out)" if result["left_out"] else ""
    print(f"{result['model']}, {result['task']}, {counted(result['pairs'], 'pair')}{left_out}, {result['dtype']}")
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


def _judge(scores: dict[str, float], thresholds: dict[str, float | None]) -> None:
    shortfalls = [f"{name} {scores[name]:.2f} is below {least:g}" for name, least in thresholds.items()
              if least is not None and scores[name] < least]  # fmt: skip
    if shortfalls:
        print_error("; ".join(shortfalls) + ".")
        raise typer.Exit(PARTLY_FAILED)
