"""`vlm serve`: models over HTTP."""

from __future__ import annotations

import importlib
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vlm.errors import InputError, counted, listed
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import INTERNAL_ERROR, command, print_error
from vlm_app.cli.options.groups import SERVING, Group, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.processes import garbage
from vlm_app.core.processes.early_start import start_early
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas.config import ReplicaConfig

if TYPE_CHECKING:
    from vlm_app.server.repository.served_models import ServedModels


@command
@takes(placing=Group.making(ReplicaConfig), config=Group.making(ServerConfig), options=SERVING.without("devices"))
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
    placing: ReplicaConfig,
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
      vlm serve ./t5 --lora legal=./legal --lora news=./news
      vlm serve ./t5 --prompt-table ./tables
      vlm serve mini-llava --devices cuda:0,cuda:1
      vlm serve ocr=facebook/nougat-base chat=llava-hf/llava-1.5-7b-hf --host 0.0.0.0 --api-key SECRET
      curl localhost:8000/v1/models
    """
    named = [_named(model) for model in models or ()]
    names = dict(named)
    if again := [name for name, _ in named if [other for other, _ in named].count(name) > 1]:
        raise InputError(f"two models are called {again[0]}; give each a name of its own: NAME=MODEL.")
    if not names and not model_repository:
        raise InputError("there is nothing to serve; give a MODEL or a --model-repository.")
    _check_adapters(names, model_repository or [], options)
    if placing.ray and config.grpc_port is not None:
        raise InputError(
            "--grpc-port is for one machine, Ray's replicas are asked over HTTP; leave one of the two out."
        )
    if placing.ray and config.model_control:
        raise InputError("--model-control changes one replica of Ray's, not the others; leave one of the two out.")
    if config.media.workers and not model_repository and not placing.has_replicas:  # which start their own
        start_early(names.values(), config.media.preload)
    if config.grpc_port is not None:
        _check_grpc()
    _check_packages("vlm_app.server.replicas.run" if placing.has_replicas else "vlm_app.server.run")
    from vlm_app.server.repository.served_models import ServedModels

    served = ServedModels(names, model_repository or [], options, warm_up)
    if placing.ray:
        _run_on_ray(served, placing, config)
    elif reason := _run_replicas(served, placing, config) if placing.has_replicas else _run(served, config):
        print_error(f"{reason}; start the server again.")
        raise typer.Exit(INTERNAL_ERROR)


def _run(served: ServedModels, config: ServerConfig) -> str | None:
    """Serves models by this process. Returns why it ended where that is no signal."""
    from vlm_app.server.run import run

    with Progress() as progress:
        pipelines, repositories = served.load(print_error, progress)
    listing = ", ".join(pipelines)
    _end_at_sigterm()
    return run(pipelines, config, lambda address: print_error(f"serving {listing} at {address}"), repositories)


def _run_replicas(served: ServedModels, placing: ReplicaConfig, config: ServerConfig) -> str | None:
    """Does the same by a process a replica."""
    from vlm_app.server.replicas.config import placements
    from vlm_app.server.replicas.run import run_replicas

    device = served.options.runtime.get("device")
    on = placements(placing, device)[0].kind  # what is wrong with devices is said before anything is built
    with Progress() as progress:
        built = served.resolved(on, progress)
    places = placements(placing, device, built.ranks)
    listing = ", ".join([*served.models, *served.urls])
    ready = f"serving {listing} by {counted(len(places), 'replica')} ({'; '.join(map(str, places))})"
    _end_at_sigterm()
    return run_replicas(
        built, places, config, lambda address: print_error(f"{ready} at {address}"), print_error,
        unresponsive_seconds=placing.unresponsive_seconds,
    )  # fmt: skip


def _run_on_ray(served: ServedModels, placing: ReplicaConfig, config: ServerConfig) -> None:
    """Does the same by Ray Serve."""
    from vlm_app.server.replicas.on_ray import run_on_ray

    listing = ", ".join([*served.models, *served.urls])
    _end_at_sigterm()
    run_on_ray(served, config, placing, lambda address: print_error(f"serving {listing} by Ray Serve at {address}"))


def _end_at_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server hears it


def _named(model: str) -> tuple[str, str]:
    """Returns (name, model) of NAME=MODEL, or of a model that is called by the last part of its path."""
    name, equals, path = model.partition("=")
    if not equals:
        name, path = model.rstrip("/").rpartition("/")[2], model
    if not name or not path:
        raise InputError(f"{model!r} names no model; give MODEL or NAME=MODEL.")
    return name, path


def _check_adapters(names: dict[str, str], repositories: list[str], options: LoadOptions) -> None:
    """Raises InputError for adapters of nobody knows which model, or that are called as it is."""
    adapters = options.runtime_config().lora_folders
    given = ["--lora"] * bool(adapters) + ["--prompt-table"] * ("prompt_table" in options.runtime)
    if given and (len(names) != 1 or repositories):
        raise InputError(
            f"{listed(given)} is for a server of one MODEL; start one for each, or name a repository's in its"
            " config.pbtxt."
        )
    if both := sorted(adapters.keys() & names.keys()):
        raise InputError(f"{both[0]} is both a MODEL and an adapter; give one of them another NAME.")


def _check_grpc() -> None:
    """Raises InputError where gRPC's packages are not there, or older than their generated messages."""
    try:
        import vlm_app.server.kserve.grpc.server  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise InputError(f"--grpc-port needs pip install 'vlm-runtime[grpc]': {error}.") from None


def _check_packages(module: str) -> None:
    """Raises InputError where a package is not there that this module needs."""
    try:
        with garbage.importing():
            importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"vlm serve needs the package {error.name}: pip install 'vlm-runtime[serve]'.") from None
