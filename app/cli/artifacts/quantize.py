"""`vlm quantize`: a model -> the same with weights of 8 or 4 bits, calibrated on inputs of yours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlm.parallel.environment import check_alone
from vlm.quantize.config import QuantizeConfig
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.display.result_file import check_writable, write_result
from vlm_app.cli.errors import command, print_error
from vlm_app.cli.options.common import MODEL_HELP
from vlm_app.cli.options.groups import LOADING, Group, takes
from vlm_app.cli.options.texts import Framing
from vlm_app.core.load_options import LoadOptions
from vlm_app.quantize.config import InputsConfig

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm_app.text.tasks import ToInput

RUNNING = LOADING.only(
    "device", "dtype", "max_batch_size", "max_seq_len", "max_encoder_input_len", "threads"
).changed(
    dtype={"default": "float32 on the CPU, bfloat16 on CUDA"}, max_batch_size={"default": "8"},
    max_seq_len={"default": "what the model was made for"}, max_encoder_input_len={"default": "what the model takes"},
)  # fmt: skip


@command
@takes(
    config=Group.making(QuantizeConfig), inputs=Group.making(InputsConfig),
    framing=Group.making(Framing).only("src_lang", "tgt_lang", "prefix"), options=RUNNING,
)  # fmt: skip
def quantize(
    *,
    model: Annotated[str, typer.Argument(help=MODEL_HELP.replace(", a checkpoint or an engine", " or a checkpoint"))],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the quantized checkpoint goes.")],
    config: QuantizeConfig,
    inputs: InputsConfig,
    framing: Framing,
    report: Annotated[Path | None, typer.Option("--report", help="Write all figures to this JSON file.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            help="Write a Hugging Face folder of compressed-tensors here, too: awq and smoothquant with --scales"
            " folded, gptq without --act-order.",
        ),
    ] = None,
    options: LoadOptions,
) -> None:
    """Quantize a model's weights, and compare it with the dense model on inputs of yours.

    awq, gptq, smoothquant and static scales are found on the inputs of --calibrate: the dense model runs on them, and
    its own outputs are what the decoder is given. A line of a .jsonl file has "prompt", "question" or "text", or a
    conversation in "messages"; "images" (paths) where the model takes them; "reference" or "answer" where it is known.
    What a page says may lie beside its image (page.png, page.mmd or .md or .txt). The checkpoint's path goes to
    stdout, the report to stderr; vlm build and vlm run take the checkpoint as any other.

    \b
    Examples:
      vlm quantize mini-nougat -o nougat.int8 --format int8
      vlm quantize facebook/nougat-base -o nougat.awq --format awq --calibrate pages/ --report quantize.json
      vlm quantize llava-hf/llava-1.5-7b-hf -o llava.gptq --format gptq --act-order --calibrate questions.jsonl
      vlm quantize google/flan-t5-xl -o flan.sq --format smoothquant --alpha 0.5 --calibrate texts.jsonl --samples 512
      vlm quantize ./my-bart -o bart.fp8 --format fp8 --static-activations --calibrate texts.txt --ignore head
    """
    check_alone("vlm quantize")
    check_writable(report, "--report")
    from vlm_app.quantize.job import QuantizeJob

    with Progress() as progress:
        job = QuantizeJob(
            model, out, config, inputs=inputs, options=options, progress=progress, export=export,
            framing=lambda pipeline: _to_input(pipeline, framing),
        )  # fmt: skip
        result = job.run()
    _print(result)
    write_result(result, report, "--report")
    print(out)


def _to_input(pipeline: Pipeline, framing: Framing) -> ToInput:
    """Returns what makes an input of a text: the text itself where nothing is said and the model knows no languages."""
    from vlm_app.text.tasks import plain

    multilingual = pipeline.tokenizer is not None and pipeline.tokenizer.languages is not None
    said = (framing.src_lang, framing.tgt_lang, framing.prefix) != (None, None, None)
    return framing.translation(pipeline) if said or multilingual else plain


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console

    from vlm_app.quantize.table import summary, table

    for reason in result.get("left_out", ()):
        print_error(f"left out: {reason}.")
    console = Console(stderr=True, width=None if Console(stderr=True).is_terminal else 100)
    console.print(table(result))
    for line in summary(result):
        console.print(line, highlight=False)
