"""`vlm run`: images or texts in, text out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlm.options import option
from vlm_app.cli.display.outputs import Printer
from vlm_app.cli.display.overlay import check_overlay, save_overlay
from vlm_app.cli.display.profiling import print_profile
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import USER_ERROR, command
from vlm_app.cli.inference.run_inputs import RunInputs, RunSources
from vlm_app.cli.options import decoding
from vlm_app.cli.options.common import DEFAULT_MODEL, MODEL_HELP, Against, ReferenceDType, check_reference
from vlm_app.cli.options.extras import EXTRAS, Extras
from vlm_app.cli.options.groups import LOADING_ADAPTERS, SAMPLING, Group, takes
from vlm_app.cli.options.idle import warn_of_idle
from vlm_app.cli.options.texts import DEFAULT_TEXT_MODEL, Framing
from vlm_app.core.load_options import LoadOptions

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline


@dataclass(frozen=True)
class DisplayOptions:
    """What is printed of the outputs."""

    as_json: bool = option(False, "Print JSON.", flags=("--json",))
    raw: bool = option(False, "The text as decoded, without post-processing.")
    run_profiling: bool = option(False, "Print where the time went.")
    save_overlay: Path | None = option(
        None, "Write the image with the boxes, polygons and labels of the answer drawn on it (florence2): a .png file."
    )


@command
@takes(
    sources=Group.making(RunSources), framing=Group.making(Framing).only("suffix", "truncate"), sampling=SAMPLING,
    extras=EXTRAS, display=Group.making(DisplayOptions), options=LOADING_ADAPTERS,
)  # fmt: skip
def run(
    *,
    sources: RunSources,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help=f"{MODEL_HELP} [default: {DEFAULT_MODEL}; for prompts {decoding.DEFAULT_ASKED_MODEL}, for texts"
            f" {DEFAULT_TEXT_MODEL}]",
        ),
    ] = None,
    framing: Framing,
    chat: decoding.Chat = False,
    sampling: dict[str, Any],
    extras: Extras,
    display: DisplayOptions,
    check_accuracy: Annotated[
        bool,
        typer.Option("--check-accuracy", help="Run Hugging Face beside it, on the same ids and pixels."),
    ] = False,
    against: Against = None,
    reference_dtype: ReferenceDType = None,
    options: LoadOptions,
) -> None:
    """Give images, a prompt, or texts to a model; what it makes of them goes to stdout.

    On a terminal, and with --raw, the text appears as it is decoded. A pipe or file gets each text when it is whole,
    post-processed (nougat: markdown, donut and florence2: JSON). --json prints one object an input: image (and page) or
    input, text, raw_text, finish_reason, tokens, token_ids, logprobs, seed; several outputs (--num-return-sequences)
    are printed one after the other, best first, and in JSON the others are "alternatives".

    \b
    Examples:
      vlm run --image page.png
      vlm run --image a.png --image b.png --json > pages.jsonl
      vlm run --image report.pdf --pages 3
      cat page.png | vlm run --image - --max-new-tokens 200
      vlm run --image page.png --model facebook/nougat-base --dtype bfloat16
      vlm run --text "translate English to German: The old ship is small."
      vlm run --image a.png --image b.png --prompt "What differs?" --model llava-hf/llava-1.5-7b-hf
      vlm run --image a.png --chat --model llava-hf/llava-1.5-7b-hf
      vlm run --image receipt.png --task cord-v2 --model naver-clova-ix/donut-base-finetuned-cord-v2
      vlm run --image page.png --question "What is the date?" --model naver-clova-ix/donut-base-finetuned-docvqa
      vlm run --image street.png --task OD --save-overlay boxes.png --model microsoft/Florence-2-base
      vlm run --image chart.png --question "Which bar is the highest?" --model google/pix2struct-chartqa-base
      vlm run --image page.png --backend auto --threads 4
      vlm run --image page.png --check-accuracy --run-profiling --dtype float32
      vlm run --image page.png --model nougat.engine --check-accuracy --against facebook/nougat-base
    """
    check_reference(reference_dtype, against, None if check_accuracy else "--check-accuracy")
    run_inputs = RunInputs.from_options(sources, framing, chat=chat)
    if display.save_overlay is not None:
        check_overlay(display.save_overlay, 0 if chat else len(run_inputs.images))
    name = run_inputs.default_model() if model is None else model
    folder = top_logprobs = None
    if check_accuracy:
        run_inputs.check_comparable()
        options.check_base_alone("--check-accuracy")
        top_logprobs = sampling.get("top_logprobs", 0)  # a comparison has more
        sampling, folder = _reference(against or name, sampling)
    extras = extras.among(options.adapters)
    sampling |= options.adapter
    room = decoding.ROOM_FOR_ANOTHER if check_accuracy else {}
    pipeline = decoding.load(name, options, run_inputs.check_family, **room)
    extras.check_fit(pipeline)
    if folder is not None:
        _check_requests(run_inputs, pipeline, folder)
    else:
        warn_of_idle(pipeline, sampling, options, as_json=display.as_json)
    if chat:
        from vlm_app.cli.inference.chat import converse

        run_inputs.check_pages(pipeline)
        converse(
            pipeline,
            sampling,
            run_inputs.images,
            extras=extras,
            json_lines=display.as_json,
            profiling=display.run_profiling,
        )
        return
    printer = Printer(pipeline, sampling, raw=display.raw, top_logprobs=top_logprobs)
    _print(printer, extras.on_inputs(run_inputs.inputs(pipeline)), run_inputs, display)
    if display.save_overlay is not None and printer.results:
        save_overlay(display.save_overlay, *printer.results[0])
    if folder is not None and printer.results:
        _compare(folder, printer, reference_dtype)
    if printer.failures:
        raise typer.Exit(USER_ERROR)


def _check_requests(run_inputs: RunInputs, pipeline: Pipeline, folder: Path) -> None:
    """Raises InputError for what is no request that can be compared, and for a folder of another family."""
    from vlm_app.reference.huggingface import check_family

    run_inputs.check_requests(pipeline)
    check_family(folder, pipeline)


def _reference(name: str, sampling: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """Returns the settings of a comparison, and Hugging Face's folder. Raises InputError where there is none."""
    from vlm_app.reference.accuracy import comparable
    from vlm_app.reference.huggingface import folder_of

    with Progress() as progress:
        return comparable(sampling), folder_of(name, progress=progress)


def _print(printer: Printer, inputs: list[dict[str, Any]], run_inputs: RunInputs, display: DisplayOptions) -> None:
    """Prints what the model makes of the inputs, as it comes where a reader looks at it."""
    alone = printer.sampling.get("num_return_sequences", 1) == 1
    reads_at_once = sys.stdout.isatty() and not printer.pipeline.capabilities.one_image_a_prompt
    if not display.as_json and alone and not run_inputs.are_pages(printer.pipeline) and (display.raw or reads_at_once):
        printer.stream(inputs)
    else:
        printer.whole(inputs, display.as_json, run_inputs.places)
    if display.run_profiling and printer.results:
        print_profile(printer.profile, printer.pipeline)


def _compare(folder: Path, printer: Printer, reference_dtype: str | None) -> None:
    """Runs Hugging Face beside what was printed, and says how far both agree."""
    from vlm_app.reference.accuracy import compare

    inputs, outputs = zip(*printer.results, strict=True)
    options = {"sampling": printer.sampling, "reference_dtype": reference_dtype}
    print(compare(folder, printer.pipeline, inputs, outputs=outputs, **options), file=sys.stderr)
