"""`vlm verify`: is an engine's output that of Hugging Face?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from vlm_app.cli.errors import verb
from vlm_app.cli.options import Device, Json, Threads
from vlm_app.cli.progress import Progress

if TYPE_CHECKING:
    from vlm_app.verification import Verified

    from vlm.config import BuildConfig

DIFFERS = 1


@verb
def verify(
    engine: Annotated[str, typer.Argument(help="An engine directory; or what `vlm run --model` takes.")],
    against: Annotated[str, typer.Option("--against", help="The Hugging Face folder (or Hub id) it was made of.")],
    new_tokens: Annotated[int, typer.Option(help="Tokens to generate for each input.")] = 24,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Allowed error of a log-probability. [default: 0.001 in float32, 0.1 in float16, 0.5 in bfloat16,"
            " 1 with weights int8]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Compare an engine with Hugging Face, token by token, on random prompts, texts and images, all in one batch.

    A table goes to stdout: tokens that agree, and the largest difference of a log-probability (of our tokens and of the
    likeliest ones at each place). The exit code is 1 where one is beyond the tolerance.

    \b
    Examples:
      vlm verify mini-t5.engine --against path/to/mini-t5
      vlm verify nougat.engine --against facebook/nougat-base --new-tokens 100 --json
    """
    from vlm_app.accuracy import folder_of
    from vlm_app.verification import TOLERANCE
    from vlm_app.verification import verify as compare

    import vlm
    from vlm.config import RuntimeConfig

    with Progress() as progress:
        folder = folder_of(against, progress=progress)
        pipeline = vlm.load(engine, runtime=RuntimeConfig(device, threads=threads), progress=progress)
    found, build = compare(pipeline, folder, new_tokens, seed), pipeline.engine.build
    allowed = TOLERANCE[build.quantization or build.dtype] if tolerance is None else tolerance
    if as_json:
        print(json.dumps(_as_json(found, allowed), indent=2))
    else:
        print(f"{_table(found, allowed)}\n{build.backend}, {_weights(build)}; tolerance {allowed:g}")
    if not all(_holds(one, allowed) for one in found):
        raise typer.Exit(DIFFERS)


def _weights(build: BuildConfig) -> str:
    return build.dtype if build.quantization is None else f"{build.dtype}, weights {build.quantization}"


def _holds(one: Verified, allowed: float) -> bool:
    return one.accuracy.error <= allowed


def _as_json(found: list[Verified], allowed: float) -> dict[str, object]:
    rows = [{"request": one.request, **asdict(one.accuracy), "holds": _holds(one, allowed)} for one in found]
    return {"tolerance": allowed, "requests": rows}


def _table(found: list[Verified], allowed: float) -> str:
    rows = [("request", "tokens", "agree", "largest error", "")]
    for one in found:
        accuracy, verdict = one.accuracy, "" if _holds(one, allowed) else "beyond the tolerance"
        rows.append((one.request, str(accuracy.tokens), f"{accuracy.agreement:.1f}%", f"{accuracy.error:.2g}", verdict))
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{a:<{width}}  {b:>6}  {c:>7}  {d:>13}  {e}".rstrip() for a, b, c, d, e in rows)
