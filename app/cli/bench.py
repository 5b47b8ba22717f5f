"""`vlm bench`: speed, beside Hugging Face's and the floor, in one run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vlm.errors import InputError
from vlm_app.backend_names import measured_names
from vlm_app.bench.config import BenchConfig, PromptBenchConfig, SubjectConfig, TextBenchConfig
from vlm_app.bench.lists import names, numbers, pairs
from vlm_app.cli.bench_output import check_writable, print_csv, print_table
from vlm_app.cli.errors import command
from vlm_app.cli.options import Device, DType, Threads
from vlm_app.cli.progress import Progress

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Measure speed; print the README's table.")

BATCH_SIZE = 64

Arch = Annotated[
    str | None, typer.Option(help="With --random-weights: a published shape, or a Hugging Face config.json.")
]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="In the shape of --arch.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Instead: a model, as in vlm run.")]
Backends = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help=f"What runs it: {', '.join(measured_names())}; several apart by ','. [default: as built, or torch]",
    ),
]
NewTokens = Annotated[int, typer.Option(help="Tokens generated a page, exactly.")]
Repeats = Annotated[int, typer.Option(help="The median of so many runs counts.")]
Seed = Annotated[int, typer.Option(help="Of random weights and images.")]
NoHF = Annotated[bool, typer.Option("--no-hf", help="Leave Hugging Face out.")]
HFNewTokens = Annotated[int, typer.Option(help="Tokens of Hugging Face's run; its time a token is taken from them.")]
HFBatchSize = Annotated[int | None, typer.Option(help="Of Hugging Face, at most. [default: the batch size]")]
BatchSizes = Annotated[str, typer.Option("--batch-size", help='At once, several apart by ";".')]
HFSteps = Annotated[
    int | None, typer.Option("--hf-new-tokens", help="Tokens of its run, the rest is extrapolated. [default: all]")
]
HFRepeats = Annotated[int, typer.Option(help="Hugging Face's runs.")]
CSV = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Out = Annotated[Path | None, typer.Option("--json", help="Write the results to this file too.")]


@app.command()
@command
def latency(
    arch: Arch = BenchConfig.arch,
    random_weights: RandomWeights = False,
    model: Model = BenchConfig.model,
    dtype: DType = BenchConfig.dtype,
    device: Device = BenchConfig.device,
    backend: Backends = None,
    threads: Threads = BenchConfig.threads,
    new_tokens: NewTokens = BenchConfig.new_tokens,
    repeats: Repeats = BenchConfig.repeats,
    seed: Seed = BenchConfig.seed,
    no_hf: NoHF = not BenchConfig.hf,
    hf_new_tokens: HFNewTokens = BenchConfig.hf_new_tokens,
    csv: CSV = False,
    out: Out = None,
) -> None:
    """One page at a time: milliseconds of the encoder, to the first token, and for each further token.

    A further token is (T(n tokens) - T(1 token)) / (n - 1) for both systems. The floor is the bytes that a decode step
    must read (decoder weights, K/V at the mean length) at the memory bandwidth measured in the same run.

    \b
    Examples:
      vlm bench latency --arch nougat-base --random-weights --json latency.json
      vlm bench latency --model mini-nougat --new-tokens 200 --no-hf --csv
      vlm bench latency --model mini-nougat --backend torch,onnxruntime --threads 2 --device cpu --new-tokens 200
    """
    config = _config(arch, random_weights, model, backends=names(backend), threads=threads, device=device,
                     dtype=dtype, new_tokens=new_tokens, repeats=repeats, seed=seed, hf=not no_hf,
                     hf_new_tokens=hf_new_tokens)  # fmt: skip
    _measure("latency", config, out, as_csv=csv)


@app.command()
@command
def throughput(
    arch: Arch = BenchConfig.arch,
    random_weights: RandomWeights = False,
    model: Model = BenchConfig.model,
    dtype: DType = BenchConfig.dtype,
    device: Device = BenchConfig.device,
    backend: Backends = None,
    threads: Threads = BenchConfig.threads,
    batch_size: Annotated[int, typer.Option(help="Pages decoded at once.")] = BATCH_SIZE,
    pages: Annotated[int | None, typer.Option(help="Pages in all. [default: twice the batch]")] = None,
    new_tokens: NewTokens = BenchConfig.new_tokens,
    repeats: Repeats = BenchConfig.repeats,
    seed: Seed = BenchConfig.seed,
    no_hf: NoHF = not BenchConfig.hf,
    hf_new_tokens: HFNewTokens = BenchConfig.hf_new_tokens,
    hf_batch_size: HFBatchSize = BenchConfig.hf_batch_size,
    csv: CSV = False,
    out: Out = None,
) -> None:
    """Many pages through a full batch: pages and tokens a second.

    Hugging Face runs one batch of --hf-new-tokens tokens; its further tokens are counted at the same time each, which
    favours it, as its steps grow with the length. The JSON says what ran.

    \b
    Examples:
      vlm bench throughput --arch nougat-base --random-weights --json throughput.json
      vlm bench throughput --model mini-nougat --batch-size 8 --new-tokens 200
    """
    config = _config(arch, random_weights, model, backends=names(backend), threads=threads, device=device,
                     dtype=dtype, new_tokens=new_tokens, repeats=repeats, seed=seed, hf=not no_hf,
                     hf_new_tokens=hf_new_tokens, hf_batch_size=hf_batch_size, batch_size=batch_size,
                     pages=2 * batch_size if pages is None else pages)  # fmt: skip
    _measure("throughput", config, out, as_csv=csv)


@app.command()
@command
def text(
    arch: Arch = TextBenchConfig.arch,
    random_weights: RandomWeights = False,
    model: Model = TextBenchConfig.model,
    dtype: DType = TextBenchConfig.dtype,
    device: Device = TextBenchConfig.device,
    backend: Backends = None,
    threads: Threads = TextBenchConfig.threads,
    batch_size: BatchSizes = "1",
    input_output_len: Annotated[str, typer.Option(help='Tokens in and out, "60,20;128,20".')] = "64,64",
    num_beams: Annotated[str, typer.Option(help='1 is greedy, several apart by ";".')] = "1",
    repeats: Repeats = TextBenchConfig.repeats,
    seed: Seed = TextBenchConfig.seed,
    no_hf: NoHF = not TextBenchConfig.hf,
    hf_new_tokens: HFSteps = TextBenchConfig.hf_new_tokens,
    hf_batch_size: HFBatchSize = TextBenchConfig.hf_batch_size,
    hf_repeats: HFRepeats = TextBenchConfig.hf_repeats,
    csv: CSV = False,
    out: Out = None,
) -> None:
    """Texts through an encoder-decoder: tokens a second, for every combination of batch, lengths and beams.

    Texts are random tokens, outputs of the full length; with beams the best one counts. With --hf-batch-size Hugging
    Face gets fewer texts at once, and the table says so. The floor is of the decode steps alone, the encoder costs
    nothing in it.

    \b
    Examples:
      vlm bench text --arch t5-small --random-weights --batch-size "1;32;128" --num-beams "1;4"
      vlm bench text --model mini-t5 --batch-size "1;8" --input-output-len "60,20;128,20" --csv
    """
    _check_pair(arch, random_weights)
    config = TextBenchConfig(
        arch=arch, model=model, backends=names(backend), threads=threads, device=device, dtype=dtype,
        batch_sizes=numbers(batch_size, "--batch-size"), lengths=pairs(input_output_len, "--input-output-len"),
        num_beams=numbers(num_beams, "--num-beams"),
        repeats=repeats, seed=seed, hf=not no_hf, hf_new_tokens=hf_new_tokens, hf_batch_size=hf_batch_size,
        hf_repeats=hf_repeats,
    )  # fmt: skip
    _measure("text", config, out, as_csv=csv)


@app.command()
@command
def prompt(
    arch: Arch = PromptBenchConfig.arch,
    random_weights: RandomWeights = False,
    model: Model = PromptBenchConfig.model,
    dtype: DType = PromptBenchConfig.dtype,
    device: Device = PromptBenchConfig.device,
    backend: Backends = None,
    threads: Threads = PromptBenchConfig.threads,
    batch_size: BatchSizes = "1",
    images: Annotated[
        int | None, typer.Option(help="In each prompt. [default: 1 where the model takes any]")
    ] = PromptBenchConfig.images,
    input_output_len: Annotated[
        str, typer.Option(help='Tokens of text in, beside the images, and out, "32,128;12,30".')
    ] = "32,128",
    repeats: Repeats = PromptBenchConfig.repeats,
    seed: Seed = PromptBenchConfig.seed,
    no_hf: NoHF = not PromptBenchConfig.hf,
    hf_new_tokens: HFSteps = PromptBenchConfig.hf_new_tokens,
    hf_repeats: HFRepeats = PromptBenchConfig.hf_repeats,
    csv: CSV = False,
    out: Out = None,
) -> None:
    """Models that are asked in words, with images or without: time to the first token, a further token, tokens a
    second.

    Every prompt has random tokens and images of its own, drawn again for every run, so that no cache helps. The first
    token includes the images' encoding; the floor is of the decode steps alone.

    \b
    Examples:
      vlm bench prompt --arch llava-1.5-7b --random-weights --dtype float16 --batch-size "1;8;32"
      vlm bench prompt --arch gpt2-medium --random-weights --input-output-len "128,128" --csv
    """
    _check_pair(arch, random_weights)
    config = PromptBenchConfig(
        arch=arch, model=model, backends=names(backend), threads=threads, device=device, dtype=dtype,
        batch_sizes=numbers(batch_size, "--batch-size"),
        lengths=pairs(input_output_len, "--input-output-len"), images=images, repeats=repeats, seed=seed,
        hf=not no_hf, hf_new_tokens=hf_new_tokens, hf_repeats=hf_repeats,
    )  # fmt: skip
    _measure("prompt", config, out, as_csv=csv)


@app.command()
@command
def table(results: Annotated[list[Path], typer.Argument(help="Files written by --json.")]) -> None:
    """Print the README's table of results, in markdown.

    \b
    Examples:
      vlm bench table benchmarks/results/*.json
    """
    from vlm_app.bench.table import load, markdown

    print(markdown(load(results)))


def _check_pair(arch: str | None, random_weights: bool) -> None:
    if random_weights != (arch is not None):
        raise InputError("--random-weights and --arch go together: --arch nougat-base --random-weights.")


def _config(arch: str | None, random_weights: bool, model: str | None, **values: Any) -> BenchConfig:
    _check_pair(arch, random_weights)
    return BenchConfig(arch=arch, model=model, **values)


def _measure(kind: str, config: SubjectConfig, out: Path | None, as_csv: bool = False) -> None:
    check_writable(out)
    # a module of its own, or one of the two of pages
    module = importlib.import_module(f"vlm_app.bench.{kind if kind in ('text', 'prompt') else 'measure'}")
    with Progress() as progress:
        result = getattr(module, kind)(config, progress)
    (print_csv if as_csv else print_table)(result)
    if out is not None:
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
