"""`vlm verify`: is an engine's output that of Hugging Face?"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from vlm.config import RuntimeConfig
from vlm.errors import InputError, listed
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import command, print_error
from vlm_app.cli.options.common import Json, ReferenceDType, check_reference
from vlm_app.cli.options.decoding import ROOM_FOR_ANOTHER
from vlm_app.cli.options.groups import RUNTIME, takes

if TYPE_CHECKING:
    from vlm.config import BuildConfig
    from vlm_app.reference.verification import Tolerances, Verdict

DIFFERS = 1


@command
@takes(runtime=RUNTIME.only("device", "threads"))
def verify(
    *,
    engine: Annotated[str, typer.Argument(help="An engine directory; or what `vlm run --model` takes.")],
    against: Annotated[str, typer.Option("--against", help="The Hugging Face folder (or Hub id) it was made of.")],
    new_tokens: Annotated[int, typer.Option(help="Tokens to generate for each input.")] = 24,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Allowed mean error of a request. [default: 0.0001 in float32, 0.02 in float16, 0.1 in bfloat16, 0.2"
            " with quantized weights]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    reference_dtype: ReferenceDType = None,
    runtime: RuntimeConfig,
    as_json: Json = False,
) -> None:
    """Compare an engine with Hugging Face, token by token, on random prompts, texts and images, all in one batch.

    The engine is held to Hugging Face's greedy tokens: at each of them, after those before it, its own choice and its
    log-probabilities are compared. An error is the largest difference of a log-probability (of the engine's token and
    of its likeliest ones), in standard deviations of Hugging Face's over the vocabulary. Another token is a near tie
    where Hugging Face's own margin between the two is at most 4 times the tolerance.

    A table goes to stdout. The exit code is 1, with a sentence on stderr, where a request's mean error is beyond the
    tolerance, its largest error beyond 10 times that, a token wrong that is no near tie, or where fewer tokens agree in
    all than 99% in float32, 95% in float16, 85% in bfloat16, 80% with quantized weights.

    \b
    Examples:
      vlm verify mini-t5.engine --against path/to/mini-t5
      vlm verify nougat.engine --against facebook/nougat-base --new-tokens 100 --json
      vlm verify nougat.engine --against facebook/nougat-base --reference-dtype float32
    """
    check_reference(reference_dtype)
    if new_tokens < 1:
        raise InputError(f"--new-tokens is {new_tokens}; it must be at least 1.")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise InputError(f"--tolerance is {tolerance}; it must be 0 or a positive number.")
    import vlm
    from vlm_app.reference.huggingface import folder_of
    from vlm_app.reference.verification import Tolerances
    from vlm_app.reference.verification import verify as compare

    with Progress() as progress:
        folder = folder_of(against, progress=progress)
        pipeline = vlm.load(engine, runtime=replace(runtime, **ROOM_FOR_ANOTHER), progress=progress)
    build = pipeline.engine.build
    tolerances = Tolerances.for_build(build, tolerance)
    verdicts = compare(pipeline, folder, new_tokens, seed=seed, reference_dtype=reference_dtype)
    if as_json:
        print(json.dumps(_as_json(verdicts, tolerances, reference_dtype or build.dtype), indent=2))
    else:
        print(
            f"{_table(verdicts, tolerances)}\n{_summary(verdicts, tolerances, build, reference_dtype or build.dtype)}"
        )
    if differences := _differences(verdicts, tolerances):
        print_error(
            f"{engine} differs from Hugging Face: {'; '.join(differences)}. Build it again, see whether"
            " --reference-dtype float32 says the same, or allow more with --tolerance."
        )
        raise typer.Exit(DIFFERS)


def _differences(verdicts: list[Verdict], tolerances: Tolerances) -> list[str]:
    """Says what is beyond what is allowed; empty where nothing is."""
    from vlm_app.reference.verification import agreement

    outliers, differences = [one for one in verdicts if one.beyond(tolerances)], []
    if outliers:
        worst = max(outliers, key=lambda one: one.mean_error)
        reasons = listed(dict.fromkeys(reason for one in outliers for reason in one.beyond(tolerances)))
        differences.append(
            f"{len(outliers)} of {len(verdicts)} requests are beyond the tolerance ({reasons}), most of all"
            f" {worst.request!r} with a mean error of {worst.mean_error:.2g}"
        )
    if (same := agreement(verdicts)) < tolerances.agreement:
        differences.append(f"{same:.1f}% of the tokens agree where {tolerances.agreement:g}% must")
    return differences


def _summary(verdicts: list[Verdict], tolerances: Tolerances, build: BuildConfig, reference_dtype: str) -> str:
    from vlm_app.reference.verification import agreement

    weights = build.dtype if build.quantization is None else f"{build.dtype}, weights {build.quantization}"
    return (
        f"{build.backend}, {weights}; Hugging Face in {reference_dtype}; {agreement(verdicts):.1f}% of the tokens"
        f" agree, {tolerances.agreement:g}% must; tolerance {tolerances.mean_error:g}, of the largest error"
        f" {tolerances.largest_error:g}, of a near tie {tolerances.tie:g}"
    )


def _as_json(verdicts: list[Verdict], tolerances: Tolerances, reference_dtype: str) -> dict[str, object]:
    from vlm_app.reference.verification import agreement

    rows = [
        {
            "request": one.request,
            "tokens": one.tokens,
            "agreement": one.agreement,
            "near_ties": one.near_ties(tolerances),
            "mean_error": one.mean_error,
            "largest_error": one.largest_error,
            "beyond": one.beyond(tolerances),
        }
        for one in verdicts
    ]
    limits = {"tolerance": tolerances.mean_error, "largest_error": tolerances.largest_error, "near_tie": tolerances.tie}
    head = {**limits, "min_agreement": tolerances.agreement, "reference_dtype": reference_dtype}
    return {**head, "agreement": agreement(verdicts), "holds": not _differences(verdicts, tolerances), "requests": rows}


def _table(verdicts: list[Verdict], tolerances: Tolerances) -> str:
    rows = [("request", "tokens", "agree", "near ties", "mean error", "largest error", "")]
    for one in verdicts:
        beyond = one.beyond(tolerances)
        verdict = f"beyond the tolerance: {listed(beyond)}" if beyond else ""
        figures = (f"{one.agreement:.1f}%", str(one.near_ties(tolerances)), f"{one.mean_error:.2g}")
        rows.append((one.request, str(one.tokens), *figures, f"{one.largest_error:.2g}", verdict))
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        f"{a:<{width}}  {b:>6}  {c:>7}  {d:>9}  {e:>10}  {f:>13}  {g}".rstrip() for a, b, c, d, e, f, g in rows
    )
