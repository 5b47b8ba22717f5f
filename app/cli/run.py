"""`vlm run`: images or texts in, text out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import USER_ERROR, complain, verb
from app.cli.options import DEFAULT_MODEL, MODEL_HELP, Device, DType, Json, MaxBatchSize, MaxNewTokens
from app.cli.progress import Progress
from app.cli.text_options import DEFAULT_TEXT_MODEL, LengthPenalty, NumBeams
from vlm.errors import InputError, VlmError
from vlm.runtime.request import SamplingParams

if TYPE_CHECKING:
    from vlm.pipeline import Output, Pipeline


@verb
def run(
    image: Annotated[
        list[str] | None,
        typer.Option("--image", "-i", help="An image file, or - for stdin; repeat it for several requests."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", "-t", help="For a model of texts: its input, or - for stdin, all of it; repeat it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help=f"{MODEL_HELP} [default: {DEFAULT_MODEL}, for texts {DEFAULT_TEXT_MODEL}]"),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="What to do. A family that takes no text (nougat) continues it: the start of the output."),
    ] = None,
    max_new_tokens: MaxNewTokens = SamplingParams.max_new_tokens,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = SamplingParams.temperature,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest; 0: all.")] = SamplingParams.top_k,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest that make up p.")] = SamplingParams.top_p,
    min_p: Annotated[
        float, typer.Option(help="Draw from those of at least p times the likeliest's chance.")
    ] = SamplingParams.min_p,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens that stand there already count less. [default: the model's]")
    ] = None,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken off what the output holds.")
    ] = SamplingParams.presence_penalty,
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken off for each time that the output holds it.")
    ] = SamplingParams.frequency_penalty,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="No n tokens in a row come twice. [default: the model's]")
    ] = None,
    min_new_tokens: Annotated[int, typer.Option(help="No end before so many.")] = SamplingParams.min_new_tokens,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = SamplingParams.seed,
    as_json: Json = False,
    raw: Annotated[bool, typer.Option("--raw", help="The text as decoded, without post-processing.")] = False,
    device: Device = "auto",
    dtype: DType = None,
    max_batch_size: MaxBatchSize = None,
) -> None:
    """Give images, or texts, to a model; what it makes of them goes to stdout.

    On a terminal, and with --raw, the text appears as it is decoded. A pipe or file gets each text when it is whole,
    post-processed (nougat: markdown). --json prints one object an input: image or input, text, raw_text, finish_reason,
    tokens, token_ids, logprobs, seed.

    \b
    Examples:
      vlm run --image page.png
      vlm run --image a.png --image b.png --json > pages.jsonl
      cat page.png | vlm run --image - --max-new-tokens 200
      vlm run --image page.png --model facebook/nougat-base --dtype bfloat16
      vlm run --text "translate English to German: The old ship is small."
    """
    sampling = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty, "min_new_tokens": min_new_tokens,
    }  # fmt: skip
    # what the model's own settings may say is passed on only when it is given
    own = {
        "repetition_penalty": repetition_penalty, "no_repeat_ngram_size": no_repeat_ngram_size,
        "num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens,
    }  # fmt: skip
    sampling |= {name: value for name, value in own.items() if value is not None}
    SamplingParams(**sampling)  # a bad value is found before the model is loaded
    inputs = _inputs(image or [], text or [], prompt)
    with Progress() as progress:
        name = model or (DEFAULT_TEXT_MODEL if text else DEFAULT_MODEL)
        pipeline = _load(name, device, dtype, max_batch_size, progress)
    if not as_json and (raw or sys.stdout.isatty()):
        failed = _stream(pipeline, inputs, sampling)
    else:
        failed = _print_whole(pipeline, inputs, sampling, as_json)
    if failed:
        raise typer.Exit(USER_ERROR)


def _load(model: str, device: str, dtype: str | None, max_batch_size: int | None, progress: Progress) -> Pipeline:
    import vlm

    return vlm.load(model, device=device, dtype=dtype, max_batch_size=max_batch_size, progress=progress)


def _inputs(images: list[str], texts: list[str], prompt: str | None) -> list[dict[str, Any]]:
    from app.text.sources import one_text

    if bool(images) == bool(texts):
        raise InputError('give --image FILE or --text "A text.", one kind at a time.')
    if images:
        return [_image(source, prompt) for source in images]
    return [{"text": one_text(text), "prompt": prompt} for text in texts]


def _image(source: str, prompt: str | None) -> dict[str, Any]:
    if source == "-":
        data = sys.stdin.buffer.read()
        if not data:
            raise InputError("stdin is empty; `--image -` reads an image file from it.")
        return {"images": [data], "prompt": prompt}
    return {"images": [source], "prompt": prompt}


def _stream(pipeline: Pipeline, inputs: list[dict[str, Any]], sampling: dict[str, Any]) -> int:
    """Prints pieces as they come; returns the number of inputs that failed."""
    failed = 0
    for given in inputs:
        try:
            for piece in pipeline.stream(given, **sampling):
                sys.stdout.write(piece)
                sys.stdout.flush()
            print()
            _report(pipeline, [pipeline.last_output])
        except VlmError as error:
            complain(error)
            failed += 1
    return failed


def _print_whole(pipeline: Pipeline, inputs: list[dict[str, Any]], sampling: dict[str, Any], as_json: bool) -> int:
    """Prints whole outputs in the order of the inputs; returns the number of inputs that failed."""
    outputs, failed = [], 0
    for index, result in _in_order(pipeline.as_completed(inputs, on_error="yield", **sampling)):
        if isinstance(result, VlmError):
            complain(result)
            failed += 1
            continue
        outputs.append(result)
        print(_json(inputs[index], result) if as_json else result.text, flush=True)
    _report(pipeline, outputs)
    return failed


def _in_order(results: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    held, turn = {}, 0
    for index, result in results:
        held[index] = result
        while turn in held:
            yield turn, held.pop(turn)
            turn += 1


def _json(given: dict[str, Any], output: Output) -> str:
    import dataclasses
    import json

    [source] = given.get("images", ["-"])
    name = {"input": given["text"]} if "text" in given else {"image": source if isinstance(source, str) else "-"}
    fields = {**name, **dataclasses.asdict(output), "tokens": len(output.token_ids)}
    return json.dumps(fields, ensure_ascii=False)


def _report(pipeline: Pipeline, outputs: list[Output]) -> None:
    """Where the time went, on stderr."""
    if not outputs:
        return
    times = pipeline.timings
    tokens = sum(len(output.token_ids) for output in outputs)
    parts = ", ".join(f"{name} {times[name]:.2f}" for name in ("preprocess", "encode", "prefill", "decode"))
    rate = f", {tokens / times['decode']:.0f} tokens/s decoding" if times["decode"] > 0 else ""
    ended = ", ".join(sorted({output.finish_reason for output in outputs}))
    print(f"{tokens} tokens ({ended}) in {times['total']:.2f} s: {parts}{rate}", file=sys.stderr)
