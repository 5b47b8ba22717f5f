"""`vlm bench`: speed, beside Hugging Face's and the floor, in one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from app.bench.config import BenchConfig, TextBenchConfig
from app.cli.errors import verb
from app.cli.options import Device, DType
from app.cli.progress import Progress
from vlm.errors import InputError

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Measure speed; print the README's table.")

BATCH_SIZE = 64

Arch = Annotated[
    str | None, typer.Option(help="With --random-weights: a published shape, or a Hugging Face config.json.")
]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="In the shape of --arch.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Instead: a model, as in vlm run.")]
NewTokens = Annotated[int, typer.Option(help="Tokens generated a page, exactly.")]
Repeats = Annotated[int, typer.Option(help="The median of so many runs counts.")]
Seed = Annotated[int, typer.Option(help="Of random weights and images.")]
NoHF = Annotated[bool, typer.Option("--no-hf", help="Leave Hugging Face out.")]
HFNewTokens = Annotated[int, typer.Option(help="Tokens of Hugging Face's run; its time a token is taken from them.")]
Out = Annotated[Path | None, typer.Option("--json", help="Write the results to this file too.")]


@app.command()
@verb
def latency(
    arch: Arch = BenchConfig.arch,
    random_weights: RandomWeights = False,
    model: Model = BenchConfig.model,
    dtype: DType = BenchConfig.dtype,
    device: Device = BenchConfig.device,
    new_tokens: NewTokens = BenchConfig.new_tokens,
    repeats: Repeats = BenchConfig.repeats,
    seed: Seed = BenchConfig.seed,
    no_hf: NoHF = not BenchConfig.hf,
    hf_new_tokens: HFNewTokens = BenchConfig.hf_new_tokens,
    out: Out = None,
) -> None:
    """One page at a time: milliseconds of the encoder, to the first token, and for each further token.

    A further token is (T(n tokens) - T(1 token)) / (n - 1) for both systems. The floor is the bytes that a decode step
    must read (decoder weights, K/V at the mean length) at the memory bandwidth measured in the same run.

    \b
    Examples:
      vlm bench latency --arch nougat-base --random-weights --json latency.json
      vlm bench latency --model mini-nougat --new-tokens 200 --no-hf
    """
    config = _config(arch, random_weights, model, device=device, dtype=dtype, new_tokens=new_tokens, repeats=repeats,
                     seed=seed, hf=not no_hf, hf_new_tokens=hf_new_tokens)  # fmt: skip
    _measure("latency", config, out)


@app.command()
@verb
def throughput(
    arch: Arch = BenchConfig.arch,
    random_weights: RandomWeights = False,
    model: Model = BenchConfig.model,
    dtype: DType = BenchConfig.dtype,
    device: Device = BenchConfig.device,
    batch_size: Annotated[int, typer.Option(help="Pages decoded at once.")] = BATCH_SIZE,
    pages: Annotated[int | None, typer.Option(help="Pages in all. [default: twice the batch]")] = None,
    new_tokens: NewTokens = BenchConfig.new_tokens,
    repeats: Repeats = BenchConfig.repeats,
    seed: Seed = BenchConfig.seed,
    no_hf: NoHF = not BenchConfig.hf,
    hf_new_tokens: HFNewTokens = BenchConfig.hf_new_tokens,
    hf_batch_size: Annotated[int | None, typer.Option(help="[default: the batch size]")] = BenchConfig.hf_batch_size,
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
    config = _config(arch, random_weights, model, device=device, dtype=dtype, new_tokens=new_tokens, repeats=repeats,
                     seed=seed, hf=not no_hf, hf_new_tokens=hf_new_tokens, hf_batch_size=hf_batch_size,
                     batch_size=batch_size, pages=2 * batch_size if pages is None else pages)  # fmt: skip
    _measure("throughput", config, out)


@app.command()
@verb
def text(
    arch: Arch = TextBenchConfig.arch,
    random_weights: RandomWeights = False,
    model: Model = TextBenchConfig.model,
    dtype: DType = TextBenchConfig.dtype,
    device: Device = TextBenchConfig.device,
    batch_size: Annotated[str, typer.Option(help='Texts at once, several apart by ";".')] = "1",
    input_output_len: Annotated[str, typer.Option(help='Tokens in and out, "60,20;128,20".')] = "64,64",
    num_beams: Annotated[str, typer.Option(help='1 is greedy, several apart by ";".')] = "1",
    repeats: Repeats = TextBenchConfig.repeats,
    seed: Seed = TextBenchConfig.seed,
    no_hf: NoHF = not TextBenchConfig.hf,
    hf_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of Hugging Face's run, the rest is extrapolated. [default: all]")
    ] = TextBenchConfig.hf_new_tokens,
    hf_repeats: Annotated[int, typer.Option(help="Its runs.")] = TextBenchConfig.hf_repeats,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Out = None,
) -> None:
    """Texts through an encoder-decoder: tokens a second, for every combination of batch, lengths and beams.

    \b
    Examples:
      vlm bench text --arch t5-small --random-weights --batch-size "1;32;128" --num-beams "1;4"
      vlm bench text --model mini-t5 --batch-size "1;8" --input-output-len "60,20;128,20" --csv
    """
    _check_pair(arch, random_weights)
    lengths = tuple(_numbers(pair, "--input-output-len", ",") for pair in input_output_len.split(";"))
    if any(len(pair) != 2 for pair in lengths):
        raise InputError(f'--input-output-len is {input_output_len!r}; give pairs such as "60,20;128,20".')
    config = TextBenchConfig(
        arch=arch, model=model, device=device, dtype=dtype, batch_sizes=_numbers(batch_size, "--batch-size"),
        lengths=lengths, num_beams=_numbers(num_beams, "--num-beams"), repeats=repeats, seed=seed, hf=not no_hf,
        hf_new_tokens=hf_new_tokens, hf_repeats=hf_repeats,
    )  # fmt: skip
    _measure("text", config, out, as_csv=csv)


@app.command()
@verb
def table(results: Annotated[list[Path], typer.Argument(help="Files written by --json.")]) -> None:
    """Print the README's table of results, in markdown.

    \b
    Examples:
      vlm bench table benchmarks/results/*.json
    """
    from app.bench.table import load, markdown

    print(markdown(load(results)))


def _numbers(text: str, option: str, separator: str = ";") -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(separator))
    except ValueError:
        raise InputError(f"{option} holds {text!r}; give whole numbers, apart by {separator!r}.") from None


def _check_pair(arch: str | None, random_weights: bool) -> None:
    if random_weights != (arch is not None):
        raise InputError("--random-weights and --arch go together: --arch nougat-base --random-weights.")


def _config(arch: str | None, random_weights: bool, model: str | None, **values: Any) -> BenchConfig:
    _check_pair(arch, random_weights)
    return BenchConfig(arch=arch, model=model, **values)


def _measure(kind: str, config: BenchConfig | TextBenchConfig, out: Path | None, as_csv: bool = False) -> None:
    from app.bench import measure
    from app.bench import text as texts

    _check_writable(out)
    run: Callable[..., dict[str, Any]] = texts.text if kind == "text" else getattr(measure, kind)
    with Progress() as progress:
        result = run(config, progress)
    (_print_csv if as_csv else _print)(result)
    if out is not None:
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_writable(out: Path | None) -> None:
    """Before minutes are spent."""
    if out is None:
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.open("a").close()
    except OSError as error:
        raise InputError(f"--json {out} cannot be written: {error.strerror}.") from None


def _print(result: dict[str, Any]) -> None:
    from dataclasses import astuple

    from rich.console import Console
    from rich.table import Table

    from app.bench.table import HEADER, rows, workload

    shown = Table(title=f"{result['kind']}: {workload(result)}", title_justify="left")
    for name in HEADER[1:]:
        shown.add_column(name, justify="left" if name == "measure" else "right")
    for row in rows(result):
        shown.add_row(*astuple(row)[1:])
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120).print(shown)
    env, floor = result["environment"], result["floor"]
    print(f"{env['device']}, memory {floor['bandwidth'] / 1e9:,.0f} GB/s measured; commit {env['commit'] or 'unknown'}")


def _print_csv(result: dict[str, Any]) -> None:
    import csv

    names = ("subject", "dtype", "batch", "beams", "in", "out", "first_token_ms", "step_ms", "tokens_per_s",
             "hf_tokens_per_s", "times_faster", "floor_tokens_per_s", "of_floor")  # fmt: skip
    table = csv.writer(sys.stdout)
    table.writerow(names)
    for row in result["rows"]:
        ours, hf, floor = row["vlm"], (row["hf"] or {}).get("tokens_per_s"), row["floor"]
        table.writerow([
            result["subject"], result["config"]["dtype"], row["batch_size"], row["num_beams"], row["input_len"],
            row["output_len"], f"{ours['first_token_ms']:.3f}", f"{ours['step_ms']:.4f}", f"{ours['tokens_per_s']:.1f}",
            hf and f"{hf:.1f}", hf and f"{ours['tokens_per_s'] / hf:.2f}", f"{floor['tokens_per_s']:.1f}",
            f"{floor['reached']:.3f}",
        ])  # fmt: skip
