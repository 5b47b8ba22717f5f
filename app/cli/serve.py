"""`vlm serve`: models over HTTP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from vlm.errors import InputError, VlmError, listed
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import INTERNAL_ERROR, command, print_error
from vlm_app.cli.options.groups import LOADING, Group, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.core.config import ServerConfig

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm_app.server.repository.control import Repositories


@command
@takes(config=Group.making(ServerConfig), options=LOADING)
def serve(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(help="What --model of `vlm run` takes, each as MODEL or NAME=MODEL.", metavar="[MODEL]..."),
    ] = None,
    model_repository: Annotated[
        list[str] | None,
        typer.Option(help="All models of a Triton model repository, a folder or a URL (s3://…); again for more."),
    ] = None,
    config: ServerConfig,
    warm_up: Annotated[
        bool | None,
        typer.Option("--warm-up/--no-warm-up", help="Compile and capture before listening. [default: on CUDA]"),
    ] = None,
    options: LoadOptions,
) -> None:
    """Serve models over HTTP: OpenAI's API at /v1, KServe's (Triton's) at /v2, /metrics and /health.

    SIGTERM and Ctrl-C let what runs end first. No address in a request is fetched: images come as data URIs.

    \b
    Examples:
      vlm serve mini-llava
      vlm serve --model-repository s3://bucket/models --model-control
      vlm serve mini-llava --grpc-port 8001
      vlm serve ocr=facebook/nougat-base chat=llava-hf/llava-1.5-7b-hf --host 0.0.0.0 --api-key SECRET
      curl localhost:8000/v1/models
    """
    if config.grpc_port is not None:
        _check_grpc()
    names = dict(_named(model) for model in models or ())
    if len(names) < len(models or ()):
        raise InputError("two models have one name; give them as NAME=MODEL.")
    if not names and not model_repository:
        raise InputError("there is nothing to serve; give a MODEL or a --model-repository.")
    run = _server()
    with Progress() as progress:
        pipelines, repositories = _loaded(names, model_repository or [], options, warm=warm_up, progress=progress)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server hears it
    listing = ", ".join(pipelines)
    if reason := run(pipelines, config, lambda address: print_error(f"serving {listing} at {address}"), repositories):
        print_error(f"{reason}; start the server again.")
        raise typer.Exit(INTERNAL_ERROR)


def _named(model: str) -> tuple[str, str]:
    """Returns (name, model) of NAME=MODEL, or of a model that is called by the last part of its path."""
    name, equals, path = model.partition("=")
    if not equals:
        name, path = model.rstrip("/").rpartition("/")[2], model
    if not name or not path:
        raise InputError(f"{model!r} names no model; give MODEL or NAME=MODEL.")
    return name, path


def _loaded(
    models: dict[str, str], urls: list[str], options: LoadOptions, warm: bool | None, progress: Progress
) -> tuple[dict[str, Pipeline], Repositories]:
    """Loads the models. One that was named must load; of one in a repository that does not, a sentence says why."""
    from vlm_app.server.repository.control import Repositories
    from vlm_app.server.repository.loading import Loader

    loader = Loader(options, warm=warm, progress=progress)
    repositories = Repositories(urls, loader)
    repositories.scan()
    if both := sorted(models.keys() & repositories.entries.keys()):
        raise InputError(f"{listed(both)} is both a MODEL and in a model repository; give it as NAME=MODEL.")
    loader.expect(len(models) + repositories.loadable)
    pipelines = {name: loader.model(model) for name, model in models.items()}
    for name in list(repositories.entries):
        try:
            pipelines[name] = repositories.load(name)
        except VlmError as error:
            print_error(error)
    if not pipelines:
        raise InputError(f"no model of {listed(urls)} could be loaded.")
    return pipelines, repositories


def _check_grpc() -> None:
    """Raises InputError where gRPC's packages are not there, or older than their generated messages."""
    try:
        import vlm_app.server.kserve.grpc.server  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise InputError(f"--grpc-port needs pip install 'vlm-runtime[grpc]': {error}.") from None


def _server() -> Callable[..., str | None]:
    try:
        from vlm_app.server.run import run
    except ImportError as error:
        raise InputError(f"vlm serve needs the package {error.name}: pip install 'vlm-runtime[serve]'.") from None
    return run
