"""`vlm bench`: speed, beside Hugging Face's and the floor, in one run."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vlm.errors import InputError
from vlm.options import option
from vlm_app.bench.config import LatencyConfig, PromptBenchConfig, SubjectConfig, TextBenchConfig, ThroughputConfig
from vlm_app.bench.ocr_config import OcrBenchConfig
from vlm_app.bench.serving.config import ServeBenchConfig
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.display.result_file import check_writable, write_result
from vlm_app.cli.errors import command
from vlm_app.cli.evaluation.bench_output import print_csv, print_table
from vlm_app.cli.options.groups import Group, GroupedCommand, takes

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Measure speed; print tables of results.")

CSV = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Out = Annotated[Path | None, typer.Option("--json", help="Write the results to this file too.")]


@dataclass(frozen=True)
class RandomWeights:
    """What stands on the command line beside a benchmark's configuration."""

    random_weights: bool = option(False, "In the shape of --arch.")


def _group(config: type[SubjectConfig]) -> Group:
    """Returns the options of a benchmark."""

    def make(values: dict[str, Any]) -> SubjectConfig:
        is_random = values.pop("random_weights", False)
        if "model" in values and (is_random or "arch" in values):
            raise InputError("--model has weights of its own; leave --arch and --random-weights out, or --model.")
        if is_random != ("arch" in values):
            raise InputError(
                "--random-weights and --arch go together: --arch NAME --random-weights; vlm models lists the shapes."
            )
        return config(**values)

    return Group.from_fields(None, make, config, RandomWeights)


@app.command(cls=GroupedCommand)
@command
@takes(config=_group(LatencyConfig))
def latency(*, config: LatencyConfig, csv: CSV = False, out: Out = None) -> None:
    """One page at a time: milliseconds of the encoder, to the first token, and for each further token.

    A further token is (T(n tokens) - T(1 token)) / (n - 1) for both systems. The floor is the bytes that a decode step
    must read (decoder weights, K/V at the mean length) at the memory bandwidth measured in the same run.

    \b
    Examples:
      vlm bench latency --arch nougat-base --random-weights --json latency.json
      vlm bench latency --model mini-nougat --new-tokens 200 --no-hf --csv
      vlm bench latency --model mini-nougat --backend torch,onnxruntime --threads 2 --device cpu --new-tokens 200
    """
    _measure("latency", config, out, as_csv=csv)


@app.command(cls=GroupedCommand)
@command
@takes(config=_group(ThroughputConfig))
def throughput(*, config: ThroughputConfig, csv: CSV = False, out: Out = None) -> None:
    """Many pages through a full batch: pages and tokens a second.

    Hugging Face runs one batch of --hf-new-tokens tokens; its further tokens are counted at the same time each, which
    favours it, as its steps grow with the length. The JSON says what ran.

    \b
    Examples:
      vlm bench throughput --arch nougat-base --random-weights --json throughput.json
      vlm bench throughput --model mini-nougat --batch-size 8 --new-tokens 200
    """
    _measure("throughput", config, out, as_csv=csv)


@app.command(cls=GroupedCommand)
@command
@takes(config=_group(TextBenchConfig))
def text(*, config: TextBenchConfig, csv: CSV = False, out: Out = None) -> None:
    """Texts through an encoder-decoder: tokens a second, for every combination of batch, lengths and beams.

    Texts are random tokens, outputs of the full length; with beams the best one counts. With --hf-batch-size Hugging
    Face gets fewer texts at once, and the table says so. The floor is of the decode steps alone, the encoder costs
    nothing in it. With --ctranslate2 that program takes turns with ours, on the CPU.

    \b
    Examples:
      vlm bench text --arch t5-base --random-weights --device cpu --backend onnxruntime-int8 --ctranslate2 int8 --no-hf
      vlm bench text --arch t5-small --random-weights --batch-size "1;32;128" --num-beams "1;4"
      vlm bench text --model mini-t5 --batch-size "1;8" --input-output-len "60,20;128,20" --csv
    """
    _measure("text", config, out, as_csv=csv)


@app.command(cls=GroupedCommand)
@command
@takes(config=_group(PromptBenchConfig))
def prompt(*, config: PromptBenchConfig, csv: CSV = False, out: Out = None) -> None:
    """Models that are asked in words, with images or without: time to the first token, a further token, tokens a
    second.

    Every prompt has random tokens and images of its own, drawn again for every run, so that no cache helps. The first
    token includes the images' encoding; the floor is of the decode steps alone.

    \b
    Examples:
      vlm bench prompt --arch llava-1.5-7b --random-weights --dtype float16 --batch-size "1;8;32"
      vlm bench prompt --arch gpt2-medium --random-weights --input-output-len "128,128" --csv
    """
    _measure("prompt", config, out, as_csv=csv)


@app.command(cls=GroupedCommand)
@command
@takes(config=_group(OcrBenchConfig))
def ocr(*, config: OcrBenchConfig, csv: CSV = False, out: Out = None) -> None:
    """The job of vlm ocr over generated documents, from files to written markdown: pages a second, beside the engine
    alone.

    Letter pages are made from the seed: text and tables as PDFs, scans and photographs in PDFs, page images. Beside the
    rates stand start-up, the processor time of all processes a page, the GPU's busy share and the most memory. The
    engine alone reads as many pages whose pixel values are ready: what the job could reach.

    \b
    Examples:
      vlm bench ocr --arch nougat-base --random-weights --batch-size 128 --workers "4;16" --json ocr.json
      vlm bench ocr --model mini-nougat --kinds scan,png --documents 6 --pages-per-document 2
    """
    _measure("ocr", config, out, as_csv=csv)


@app.command(cls=GroupedCommand)
@command
@takes(config=Group.making(ServeBenchConfig))
def serve(
    *,
    serve_options: Annotated[
        list[str] | None, typer.Argument(help="Options of the `vlm serve` that is started.", metavar="[-- OPTION...]")
    ] = None,
    config: ServeBenchConfig,
    csv: CSV = False,
    out: Out = None,
) -> None:
    """A server under load, ours or any of OpenAI's API: time to first token, per output token, between tokens and end
    to end at several rates of requests; failures, goodput and how long it takes to start.

    Requests are sent at their times (an open loop of Poisson arrivals), whether or not earlier ones have been answered.
    Texts and images are drawn for each. Without --url a `vlm serve` is started for it, in a process of its own.

    \b
    Examples:
      vlm bench serve --model mini-llava --request-rate 1,2,4 --num-prompts 60 --images 1 -- --device cpu
      vlm bench serve --url http://127.0.0.1:8000 --request-rate 4 --input-len 260-440 --goodput ttft:200 tpot:50
      vlm bench serve --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --request-rate inf --max-concurrency 32
      vlm bench serve --url http://127.0.0.1:8000 --dataset-path prompts.jsonl --json serve.json
    """
    check_writable(out)
    from vlm_app.bench.serving import job

    with Progress() as progress:
        result = job.serve(config, serve_options or (), progress)
    _write(result, out, as_csv=csv)


@app.command(cls=GroupedCommand)
@command
def table(results: Annotated[list[Path], typer.Argument(help="Files written by --json.")]) -> None:
    """Print the table of docs/benchmarks.md: results, in markdown.

    \b
    Examples:
      vlm bench table benchmarks/results/*.json
    """
    from vlm_app.bench.table import load, markdown

    print(markdown(load(results)))


def _measure(kind: str, config: SubjectConfig, out: Path | None, as_csv: bool = False) -> None:
    check_writable(out)
    # a module of its own, or one of the two of pages
    module = importlib.import_module(f"vlm_app.bench.{kind if kind in ('text', 'prompt', 'ocr') else 'measure'}")
    with Progress() as progress:
        result = getattr(module, kind)(config, progress)
    _write(result, out, as_csv=as_csv)


def _write(result: dict[str, Any], out: Path | None, *, as_csv: bool) -> None:
    (print_csv if as_csv else print_table)(result)
    write_result(result, out)
