"""What `vlm run` and `vlm generate` share: the model they take, how it is loaded, what stdin is read for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlm.build.locate import family_on_disk
from vlm.errors import InputError
from vlm_app.cli.display.progress import Progress

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.registry.spec import FamilySpec
    from vlm_app.core.load_options import LoadOptions

DEFAULT_ASKED_MODEL = "mini-llava"  # where it is packaged
# a cache that leaves most of a GPU to another model
ROOM_FOR_ANOTHER: dict[str, Any] = {"kv_cache_free_gpu_memory_fraction": 0.2}

FamilyCheck = Callable[["FamilySpec"], None]  # raises for a family that is not for what is asked
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Converse: a line of stdin a turn; /image FILE, /reset and /exit are commands."),
]


def load(model: str, options: LoadOptions, check: FamilyCheck | None = None, **defaults: Any) -> Pipeline:
    """Loads a model, with progress on stderr; `defaults` are RuntimeConfig's, for what was not given. What `check`
    raises of its family comes before anything is built, where that lies on this disk and says so itself."""
    if check is not None and (family := family_on_disk(model)) is not None:
        check(family)
    with Progress() as progress:
        pipeline = options.load(model, progress, **defaults)
    if check is not None:
        check(pipeline.family)
    if options.build.get("backend") == "auto":
        print(f"backend {_explained(pipeline, options.dtype)}", file=sys.stderr)
    return pipeline


def _explained(pipeline: Pipeline, dtype: str | None) -> str:
    """Says which backend runs, and why."""
    from vlm.backends.selection import pick

    name, choice = pipeline.engine.build.backend, pick(pipeline.device.type, dtype, pipeline.processor.vision)
    return f"{name}: {choice.reason if name == choice.name else 'the engine was built for it'}"


def packaged_chat_model() -> str | None:
    """Returns the packaged model that takes prompts, where there is one."""
    from vlm.build.locate import packaged_models

    return DEFAULT_ASKED_MODEL if DEFAULT_ASKED_MODEL in packaged_models() else None


def check_chat_model(family: FamilySpec, what: str) -> None:
    """Raises InputError for a family whose models take no prompts."""
    if not family.takes_prompt:
        other = "vlm run --image FILE" if family.takes_images else 'vlm run --text "A text."'
        raise InputError(f"{what} is for models that are asked in words; {family.name} is for {other}.")


def check_has_encoder(pipeline: Pipeline) -> None:
    """Raises InputError for a decoder alone, whose outputs begin with its prompt."""
    if not pipeline.config.cross_attention:
        raise InputError(
            "--decoder-prompt-token-ids is for models with an encoder;"
            f" {pipeline.family.name} has none, and its prompt is where it begins: leave the option out."
        )


def one_prompt(argument: str, verbatim: bool = False) -> str:
    """Returns an argument, or for `-` all of stdin, without the ends of its last lines unless it is `verbatim`."""
    from vlm_app.text.sources import one_text

    text = one_text(argument)
    return text if verbatim or argument != "-" else text.rstrip("\r\n")
