"""`vlm serve`: models over HTTP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import complain, verb
from app.cli.options import Device, DType, MaxBatchSize
from app.cli.progress import Progress
from app.server.config import ServerConfig
from vlm.config import RuntimeConfig
from vlm.errors import InputError

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

DEFAULTS = ServerConfig()


@verb
def serve(
    models: Annotated[
        list[str],
        typer.Argument(help="What --model of `vlm run` takes, each as MODEL or NAME=MODEL.", metavar="MODEL"),
    ],
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
        int, typer.Option(help="Processes that decode images; 0: threads of the server.")
    ] = DEFAULTS.preprocess_workers,
    drain_seconds: Annotated[int, typer.Option(help="For what runs at SIGTERM.")] = DEFAULTS.drain_seconds,
    device: Device = "auto",
    dtype: DType = None,
    max_batch_size: MaxBatchSize = None,
) -> None:
    """Serve models over HTTP: OpenAI's API at /v1, KServe's (Triton's) at /v2, /metrics and /health.

    SIGTERM and Ctrl-C let what runs end first. No address in a request is fetched: images come as data URIs.

    \b
    Examples:
      vlm serve mini-llava
      vlm serve ocr=facebook/nougat-base chat=llava-hf/llava-1.5-7b-hf --host 0.0.0.0 --api-key SECRET
      curl localhost:8000/v1/models
    """
    config = ServerConfig(
        host, port, api_key, max_requests, max_body_mb, max_images, max_image_pixels, preprocess_workers, drain_seconds
    )
    names = dict(_named(model) for model in models)
    if len(names) < len(models):
        raise InputError("two models have one name; give them as NAME=MODEL.")
    run = _server()
    pipelines = _loaded(names, device, dtype, max_batch_size)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # what the server raises again once it has drained
    run(pipelines, config, lambda address: complain(f"serving {', '.join(names)} at {address}"))


def _named(model: str) -> tuple[str, str]:
    """NAME=MODEL, or a model by the last part of its path."""
    name, equals, path = model.partition("=")
    if not equals:
        name, path = model.rstrip("/").rpartition("/")[2], model
    if not name or not path:
        raise InputError(f"{model!r} names no model; give MODEL or NAME=MODEL.")
    return name, path


def _loaded(models: dict[str, str], device: str, dtype: str | None, max_batch_size: int | None) -> dict[str, Pipeline]:
    """What is free on a GPU is shared out evenly among the caches of models that are yet to load."""
    import vlm

    loaded: dict[str, Pipeline] = {}
    with Progress() as progress:
        for name, model in models.items():
            fraction = RuntimeConfig.kv_cache_free_gpu_memory_fraction / (len(models) - len(loaded))
            runtime = RuntimeConfig(device, kv_cache_free_gpu_memory_fraction=fraction)
            options = {"dtype": dtype, "max_batch_size": max_batch_size, "progress": progress}
            loaded[name] = vlm.load(model, runtime=runtime, **options)
    return loaded


def _server() -> Callable[..., None]:
    try:
        from app.server.run import run
    except ImportError as error:
        raise InputError(f"vlm serve needs the package {error.name}: pip install 'vlm[serve]'.") from None
    return run
