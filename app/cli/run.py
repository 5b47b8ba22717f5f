"""`vlm run`: images or texts in, text out."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from vlm_app.cli import decoding
from vlm_app.cli.errors import USER_ERROR, command
from vlm_app.cli.option_groups import LOADING, SAMPLING, takes
from vlm_app.cli.options import DEFAULT_MODEL, MODEL_HELP, Json, ReferenceDType, check_reference_dtype
from vlm_app.cli.outputs import Printer
from vlm_app.cli.profiling import print_profile
from vlm_app.cli.progress import Progress
from vlm_app.cli.run_inputs import RunInputs
from vlm_app.cli.soft_prompts import SoftPrompts, TableFile, TaskNumbers, prepend
from vlm_app.cli.text_options import DEFAULT_TEXT_MODEL, InputIds, Suffix, Truncate
from vlm_app.core.load_options import LoadOptions


@command
@takes(sampling=SAMPLING, options=LOADING)
def run(
    *,
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            "-i",
            help="An image or PDF file, or - for stdin; repeat it for several, which belong to one prompt (for nougat,"
            " which takes no prompt about them: to a request each, as do a PDF's pages).",
        ),
    ] = None,
    pages: Annotated[
        str | None,
        typer.Option("--pages", "--page", help="Of every PDF and TIFF, as in vlm ocr: 3 or 1-4,7. [default: all]"),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", "-t", help="For a model of texts: its input, or - for stdin, all of it; repeat it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help=f"{MODEL_HELP} [default: {DEFAULT_MODEL}; for prompts {decoding.DEFAULT_ASKED_MODEL}, for texts"
            f" {DEFAULT_TEXT_MODEL}]",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="What to do, or - for stdin, in the model's own template; <image> says where an image stands. A family"
            " that takes no text (nougat) continues it: the start of the output."
        ),
    ] = None,
    raw_prompt: Annotated[str | None, typer.Option(help="The prompt as the model reads it, in no template.")] = None,
    input_ids: InputIds = None,
    suffix: Suffix = None,
    truncate: Truncate = False,
    chat: decoding.Chat = False,
    sampling: dict[str, Any],
    prompt_table: TableFile = None,
    tasks: TaskNumbers = None,
    as_json: Json = False,
    raw: Annotated[bool, typer.Option("--raw", help="The text as decoded, without post-processing.")] = False,
    run_profiling: Annotated[bool, typer.Option("--run-profiling", help="Print where the time went.")] = False,
    check_accuracy: Annotated[
        bool, typer.Option("--check-accuracy", help="Run Hugging Face beside it, on the same ids and pixels, greedily.")
    ] = False,
    reference_dtype: ReferenceDType = None,
    options: LoadOptions,
) -> None:
    """Give images, a prompt, or texts to a model; what it makes of them goes to stdout.

    On a terminal, and with --raw, the text appears as it is decoded. A pipe or file gets each text when it is whole,
    post-processed (nougat: markdown). --json prints one object an input: image (and page) or input, text, raw_text,
    finish_reason, tokens, token_ids, logprobs, seed; several outputs (--num-return-sequences) are printed one after the
    other, best first, and in JSON the others are "alternatives".

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
      vlm run --image page.png --backend auto --threads 4
      vlm run --image page.png --check-accuracy --run-profiling --dtype float32
    """
    check_reference_dtype(reference_dtype, None if check_accuracy else "--check-accuracy")
    framing = {"suffix": suffix, "truncate": truncate or None}
    run_inputs = RunInputs.from_options(image or [], text or [], prompt, raw_prompt, chat, input_ids, framing, pages)
    tuned = SoftPrompts.read(prompt_table, tasks)
    name = run_inputs.default_model() if model is None else model
    folder = None
    if check_accuracy:
        from vlm_app.reference import accuracy
        from vlm_app.reference.huggingface import folder_of

        run_inputs.check_comparable()
        with Progress() as progress:
            sampling, folder = accuracy.greedy(sampling), folder_of(name, progress=progress)
    pipeline = decoding.load(name, options, **(decoding.ROOM_FOR_ANOTHER if check_accuracy else {}))
    if chat:
        from vlm_app.cli.chat import converse

        run_inputs.check_pages(pipeline)
        converse(pipeline, sampling, run_inputs.images, tuned, as_json, run_profiling)
        return
    printer = Printer(pipeline, sampling, raw=raw)
    inputs = prepend(tuned, run_inputs.inputs(pipeline))
    if not as_json and sampling.get("num_return_sequences", 1) == 1 and (raw or sys.stdout.isatty()):
        printer.stream(inputs)
    else:
        printer.whole(inputs, as_json, run_inputs.places)
    if run_profiling and printer.done:
        print_profile(printer.profile, pipeline)
    if folder is not None and printer.done:
        inputs, outputs = zip(*printer.done, strict=True)
        print(accuracy.compare(folder, pipeline, inputs, outputs, sampling, reference_dtype), file=sys.stderr)
    if printer.failed:
        raise typer.Exit(USER_ERROR)
