"""`vlm encode`: the encoder alone, texts or images in, hidden states out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlm.artifacts.native.engine_dir import check_encodes
from vlm.errors import InputError, VlmError
from vlm_app.cli.errors import PARTLY_FAILED, command, print_error
from vlm_app.cli.options import decoding
from vlm_app.cli.options.common import Model
from vlm_app.cli.options.extras import EXTRAS, Extras
from vlm_app.cli.options.groups import LOADING_ADAPTERS, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.renamed import with_flags
from vlm_app.text.sources import from_arguments

if TYPE_CHECKING:
    import numpy as np

    from vlm.api.pipeline import Encoding, Pipeline
    from vlm.registry.spec import FamilySpec

SUFFIXES = (".npz", ".safetensors")


@dataclass(frozen=True)
class Source:
    """An input of the encoder, or why there is none."""

    place: str  # what it is called
    fields: dict[str, Any]
    error: str | None = None


@command
@takes(extras=EXTRAS, options=LOADING_ADAPTERS)
def encode(
    *,
    text: Annotated[list[str] | None, typer.Argument(help="Texts; - reads one a line from stdin.")] = None,
    image: Annotated[list[str] | None, typer.Option("--image", "-i", help="Instead: images; repeat it.")] = None,
    model: Model = "mini-t5",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .npz or .safetensors file. [default: means as JSON lines on stdout]"),
    ] = None,
    hidden_states: Annotated[bool, typer.Option("--hidden-states", help="Of every block, into --out.")] = False,
    attentions: Annotated[bool, typer.Option("--attentions", help="Of every block, into --out.")] = False,
    src_lang: Annotated[str | None, typer.Option(help="Language code of the texts, where the model has them.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut the end off texts that are too long.")] = False,
    extras: Extras,
    options: LoadOptions,
) -> None:
    """Run a model's encoder and keep what it gives.

    --out holds, for input number i, `i.last_hidden_state` [tokens, hidden], `i.token_ids` of a text (those from the
    vocabulary's size on are the rows of --prompt-table), and on request `i.hidden_states.k` (embeddings first, the last
    one normalized) and `i.attentions.k` [heads, tokens, tokens].
    Without it each input gives a line of JSON: its tokens and the mean of its last hidden states. One that fails
    (empty, not UTF-8, too long) is named on stderr and left out; the others are done and the exit code is 1.

    \b
    Examples:
      vlm encode "A sentence." "And another." -o states.npz --hidden-states --attentions
      cat sentences.txt | vlm encode - > embeddings.jsonl
      vlm encode --model mini-nougat --image page.png -o page.safetensors
      vlm encode "A sentence." "And another." --model ./t5 --lora-dir ./legal --lora-task-uids 0 -1
      vlm encode "A sentence." "And another." --model ./t5 --prompt-table ./tables --tasks squad
    """
    if (hidden_states or attentions) and out is None:
        raise InputError("--hidden-states and --attentions go into a file: give --out FILE.npz.")
    if out is not None and out.suffix not in SUFFIXES:
        raise InputError(f"--out {out} must end in .npz or .safetensors.")
    extras = extras.among(options.adapters)
    sources = _sources(text or [], image or [])
    inputs = extras.on_inputs([source.fields for source in sources])
    sources = [replace(s, fields={**options.adapter, **each}) for s, each in zip(sources, inputs, strict=True)]
    _check_images(image or (), sources)
    check = partial(_check_family, has_image=bool(image))
    pipeline = decoding.load(model, options.overridden_by(LoadOptions(encoder_only=True)), check)
    extras.check_fit(pipeline)
    fields = {"src_lang": src_lang, "truncate": truncate or None} if text else {}
    if out is None:
        encoded = []
        for number, encoding in _each(pipeline, sources, fields):
            _print(sources[number].fields, encoding)
            encoded.append(number)
    else:
        encoded = _all(pipeline, sources, {"hidden_states": hidden_states, "attentions": attentions, **fields})
        _write(out, encoded)
        print(out)
    if len(encoded) < len(sources):
        raise typer.Exit(PARTLY_FAILED)


def _check_family(family: FamilySpec, has_image: bool) -> None:
    check_encodes(family.name, family.roles)
    family.check_inputs(has_text=not has_image, has_image=has_image)


def _sources(texts: list[str], images: list[str]) -> list[Source]:
    """Reads the arguments, and stdin. Raises InputError where there is no input, and for a lone one that cannot be
    read."""
    if bool(texts) == bool(images):
        raise InputError('give texts or images: vlm encode "A sentence.", or vlm encode --image page.png.')
    if images:
        return [Source(name, {"images": [name]}) for name in images]
    sources = [Source(item.place, {"text": item.text}, item.error) for item in from_arguments(texts)]
    if not sources:
        raise InputError("stdin is empty; `vlm encode -` reads a text a line from it.")
    if len(sources) == 1 and sources[0].error:
        raise InputError(f"{sources[0].place}: {sources[0].error}.")
    return sources


def _check_images(images: Sequence[str], sources: Sequence[Source]) -> None:
    """Raises, before a model is loaded, InputError for what texts alone have beside them, and ImageError for a file
    that is not there."""
    if images:
        if any("lora" in source.fields for source in sources):
            raise InputError("adapters leave encoders of images as they are; leave --lora and --lora-task-uids out.")
        if any("prompt_table" in source.fields for source in sources):
            raise InputError("tuned prompts go before texts, not images; leave --prompt-table and --tasks out.")
        from vlm.processing.media.images import check_opens

        for name in images:
            check_opens(name)


def _each(pipeline: Pipeline, sources: Sequence[Source], options: dict[str, Any]) -> Iterator[tuple[int, Encoding]]:
    """Yields the number and the states of each input; says what is wrong with one of several and goes on."""
    for number, source in enumerate(sources):
        if source.error is not None:
            _print_unreadable(source)
            continue
        try:
            yield number, pipeline.encode(source.fields, **options)
        except VlmError as error:
            if len(sources) == 1:
                raise
            print_error(f"{source.place}: {with_flags(error)}")


def _all(pipeline: Pipeline, sources: Sequence[Source], options: dict[str, Any]) -> dict[int, Encoding]:
    """Returns the states of inputs by their numbers, which were encoded together where nothing is wrong with any that
    could be read."""
    readable = [number for number, source in enumerate(sources) if source.error is None]
    try:
        encodings = pipeline.encode([sources[number].fields for number in readable], **options)
    except VlmError:
        return dict(_each(pipeline, sources, options))
    for source in sources:
        if source.error is not None:
            _print_unreadable(source)
    return dict(zip(readable, encodings, strict=True))


def _print_unreadable(source: Source) -> None:
    print_error(f"{source.place}: {source.error}.")


def _print(source: dict[str, Any], encoding: Encoding) -> None:
    states = encoding.last_hidden_state.float()
    name = source.get("text") or source["images"][0]
    print(json.dumps({"input": name, "rows": len(states), "mean": states.mean(0).tolist()}, ensure_ascii=False))


def _write(out: Path, encodings: Mapping[int, Encoding]) -> None:
    arrays: dict[str, Any] = {
        f"{i}.{name}": array for i, encoding in encodings.items() for name, array in _arrays(encoding).items()
    }
    try:
        if out.suffix == ".npz":
            import numpy as np

            np.savez(out, **arrays)
        else:
            from safetensors.numpy import save_file

            save_file(arrays, out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}.") from None


def _arrays(encoding: Encoding) -> dict[str, np.ndarray]:
    """Returns the states of an input, as float32 where they were bfloat16: numpy has no such type."""
    import numpy as np
    import torch

    as_array = lambda x: (x.float() if x.dtype == torch.bfloat16 else x).contiguous().numpy()  # noqa: E731
    arrays = {"last_hidden_state": as_array(encoding.last_hidden_state)}
    if encoding.token_ids is not None:
        arrays["token_ids"] = np.array(encoding.token_ids, dtype=np.int32)
    for name in ("hidden_states", "attentions"):
        arrays |= {f"{name}.{k}": as_array(x) for k, x in enumerate(getattr(encoding, name) or ())}
    return arrays
