"""`vlm serve`: models over HTTP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from vlm.errors import InputError, VlmError, listed
from vlm.processing.worker_process import Budget
from vlm_app.cli.errors import INTERNAL_ERROR, command, print_error
from vlm_app.cli.option_groups import LOADING, takes
from vlm_app.cli.progress import Progress
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.core.config import ServerConfig

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm_app.server.repository.control import Repositories

DEFAULTS = ServerConfig()


@command
@takes(options=LOADING)
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
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")] = DEFAULTS.host,
    port: Annotated[int, typer.Option(help="0: any that is free.")] = DEFAULTS.port,
    api_key: Annotated[
        str | None, typer.Option(envvar="VLM_API_KEY", help="Clients must send it. [default: none is needed]")
    ] = DEFAULTS.api_key,
    max_requests: Annotated[
        int, typer.Option(help="Outputs a model holds, running or waiting; more get 429.")
    ] = DEFAULTS.max_requests,
    max_body_mb: Annotated[int, typer.Option(help="Of a request.")] = DEFAULTS.max_body_mb,
    max_images: Annotated[int, typer.Option(help="Of a request; pages of PDFs count.")] = DEFAULTS.max_images,
    max_image_pixels: Annotated[int, typer.Option(help="Of an image.")] = DEFAULTS.max_image_pixels,
    preprocess_workers: Annotated[
        int, typer.Option(help="Processes that decode images; 0: threads of the server, which no budget bounds.")
    ] = DEFAULTS.preprocess_workers,
    media_seconds: Annotated[
        float, typer.Option(help="For decoding all images and pages of a request; then it is refused.")
    ] = DEFAULTS.media.seconds,
    media_memory_mb: Annotated[
        int, typer.Option(help="That decoding a request may take in its process.")
    ] = DEFAULTS.media.memory_mb,
    header_seconds: Annotated[
        float, typer.Option(help="For a request's line and headers to come.")
    ] = DEFAULTS.header_seconds,
    body_seconds: Annotated[
        float, typer.Option(help="For a body to come, or an answer to be read; and a second for every 64 KB.")
    ] = DEFAULTS.body_seconds,
    idle_seconds: Annotated[float, typer.Option(help="Between two requests of a connection.")] = DEFAULTS.idle_seconds,
    max_connections: Annotated[
        int, typer.Option(help="At once; more end those that wait, or get 503.")
    ] = DEFAULTS.max_connections,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that clients may have for this server, or *; again for more. [default: its own]"),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(help="Of web pages that may ask (https://a.example), or *; again for more. [default: none]"),
    ] = None,
    drain_seconds: Annotated[
        int, typer.Option(help="For what runs at SIGTERM, or when its model is unloaded.")
    ] = DEFAULTS.drain_seconds,
    model_control: Annotated[
        bool, typer.Option("--model-control", help="Clients may load and unload the models of repositories.")
    ] = DEFAULTS.model_control,
    grpc_port: Annotated[
        int | None,
        typer.Option(help="Serve KServe's protocol over gRPC, too; Triton's is 8001, 0: any that is free."),
    ] = DEFAULTS.grpc_port,
    exit_when_broken: Annotated[
        bool,
        typer.Option("--exit-when-broken/--stay-when-broken", help="At an engine's end, exit 70 or answer 503."),
    ] = DEFAULTS.exit_when_broken,
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
    config = ServerConfig(
        host=host,
        port=port,
        api_key=api_key,
        max_requests=max_requests,
        max_body_mb=max_body_mb,
        max_images=max_images,
        max_image_pixels=max_image_pixels,
        preprocess_workers=preprocess_workers,
        media=Budget(media_seconds, media_memory_mb),
        header_seconds=header_seconds,
        body_seconds=body_seconds,
        idle_seconds=idle_seconds,
        max_connections=max_connections,
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(allowed_origin or ()),
        drain_seconds=drain_seconds,
        model_control=model_control,
        exit_when_broken=exit_when_broken,
        grpc_port=grpc_port,
    )
    if grpc_port is not None:
        _check_grpc()
    names = dict(_named(model) for model in models or ())
    if len(names) < len(models or ()):
        raise InputError("two models have one name; give them as NAME=MODEL.")
    if not names and not model_repository:
        raise InputError("there is nothing to serve; give a MODEL or a --model-repository.")
    run = _server()
    with Progress() as progress:
        pipelines, repositories = _loaded(names, model_repository or [], options, warm_up, progress)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server hears it
    served = ", ".join(pipelines)
    if reason := run(pipelines, config, lambda address: print_error(f"serving {served} at {address}"), repositories):
        print_error(f"{reason}; start the server again.")
        raise typer.Exit(INTERNAL_ERROR)


def _named(model: str) -> tuple[str, str]:
    """NAME=MODEL, or a model by the last part of its path."""
    name, equals, path = model.partition("=")
    if not equals:
        name, path = model.rstrip("/").rpartition("/")[2], model
    if not name or not path:
        raise InputError(f"{model!r} names no model; give MODEL or NAME=MODEL.")
    return name, path


def _loaded(
    models: dict[str, str], urls: list[str], options: LoadOptions, warm: bool | None, progress: Progress
) -> tuple[dict[str, Pipeline], Repositories]:
    """A model that was named must load; of one in a repository that does not, a sentence says why."""
    from vlm_app.server.repository.control import Repositories
    from vlm_app.server.repository.loading import Loader

    loader = Loader(options, warm=warm, progress=progress)
    repositories = Repositories(urls, loader)
    repositories.scan()
    if both := sorted(models.keys() & repositories.found.keys()):
        raise InputError(f"{listed(both)} is both a MODEL and in a model repository; give it as NAME=MODEL.")
    loader.expect(len(models) + repositories.loadable)
    pipelines = {name: loader.model(model) for name, model in models.items()}
    for name in list(repositories.found):
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


def _server() -> Callable[..., None]:
    try:
        from vlm_app.server.run import run
    except ImportError as error:
        raise InputError(f"vlm serve needs the package {error.name}: pip install 'vlm-runtime[serve]'.") from None
    return run
