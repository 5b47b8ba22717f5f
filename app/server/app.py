"""The server as an ASGI application: models, routes, limits, health."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette

from vlm import __version__
from vlm.api.pipeline import Pipeline
from vlm.processing.media.pool import MediaPool
from vlm_app.server.core import errors
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.core.metrics import Metrics
from vlm_app.server.http.checks import Checks, add_door, content_type
from vlm_app.server.http.content_coding import AnswerCoding, ContentDecoding
from vlm_app.server.http.limits import ApiKey, BodyLimit
from vlm_app.server.http.origin_form import OriginForm
from vlm_app.server.http.request_id import RequestId
from vlm_app.server.http.root_path import RootPath
from vlm_app.server.http.slashes import WithoutSlash
from vlm_app.server.kserve import api as kserve
from vlm_app.server.kserve import generate, repository_api, unserved
from vlm_app.server.openai import adapters, embeddings
from vlm_app.server.openai import api as openai
from vlm_app.server.repository.control import Control, Repositories
from vlm_app.server.repository.service import Service, Services, services_of

if TYPE_CHECKING:
    from vlm_app.server.kserve.grpc.server import GrpcServer


def create_app(
    pipelines: dict[str, Pipeline],
    config: ServerConfig,
    repositories: Repositories | None = None,
    on_break: Callable[[str, Exception], None] = lambda name, error: None,
) -> FastAPI:
    """Serves loaded models under these names. It owns them from now on, so `pipelines` is emptied: the memory of one
    that is unloaded must be free. `repositories`: where some of them come from, and others may. `on_break` is told of
    an engine that is beyond recovery."""
    metrics, services = Metrics(), Services()
    media = MediaPool(config.media)
    metrics.register(lambda: {service.name: service.pipeline.usage() for service in services})
    if media.has_processes:
        metrics.watch_workers(media)
    entries = repositories.loaded_entries if repositories else {}

    def add(name: str, pipeline: Pipeline) -> Service:
        own = entries[name].service_options if name in entries else {}
        limits = {"max_requests": config.max_requests, "step_seconds": config.step_seconds}
        services.add(Service(name, pipeline, media, metrics=metrics, on_break=on_break, **limits, **own))
        return services[name]

    for name in list(pipelines):
        add(name, pipelines.pop(name))

    def serve(name: str, pipeline: Pipeline) -> None:
        add(name, pipeline).model.start()

    app = FastAPI(title="vlm", version=__version__, lifespan=_lifespan(config))
    app.state.services, app.state.metrics, app.state.media = services, metrics, media
    app.state.grpc = None
    app.state.control = Control(
        services, repositories, serve, is_enabled=config.model_control, drain_seconds=config.drain_seconds
    )
    _route(app, config)
    return app


def _lifespan(config: ServerConfig) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Returns what runs as long as the application does: engines, processes that read media, gRPC."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services: Services = app.state.services
        media: MediaPool = app.state.media
        services.start()  # a loop here would hold the last one
        if any(service.pipeline.capabilities.takes_images for service in services):
            media.start()
        if config.grpc_address is not None:
            app.state.grpc = await _grpc(services, app.state.control, config)
        yield
        if app.state.grpc is not None:
            await app.state.grpc.drain()
        media.close()
        for service in services:
            await service.close()

    return lifespan


async def _grpc(services: Services, control: Control, config: ServerConfig) -> GrpcServer:
    """Starts the gRPC server. Raises InputError when it cannot listen there."""
    from vlm_app.server.kserve.grpc.server import GrpcServer
    from vlm_app.server.kserve.grpc.servicer import Servicer

    server = GrpcServer(Servicer(services, control, config.max_body_mb * 2**20).register, config)
    await server.start()
    return server


def _route(app: FastAPI, config: ServerConfig) -> None:
    for protocol in (openai, adapters, embeddings, kserve, generate, repository_api, unserved):
        app.include_router(protocol.router)
    app.get("/health")(health)
    app.get("/metrics")(show_metrics)
    errors.install(app)
    add_guards(app, config)


def add_guards(app: Starlette, config: ServerConfig) -> None:
    """Adds what a request passes before a route sees it: the last is the first."""
    limit = config.max_body_mb * 2**20
    app.add_middleware(WithoutSlash)
    app.add_middleware(AnswerCoding)
    app.add_middleware(BodyLimit, limit=limit)
    app.add_middleware(ContentDecoding, limit=limit)
    app.add_middleware(Checks, checks=[content_type])
    if config.api_key is not None:
        app.add_middleware(ApiKey, key=config.api_key)
    add_door(app, config.host, config.allowed_hosts, config.allowed_origins)
    app.add_middleware(RequestId)  # refusals have an id, too
    if config.root_path:
        app.add_middleware(RootPath, root_path=config.root_path)
    app.add_middleware(OriginForm)


async def health(http: Request) -> JSONResponse:
    """Answers 200 while every engine runs and images can be read, else 503."""
    broken = [service.name for service in services_of(http) if not service.ready]
    media: MediaPool = http.app.state.media
    is_broken = bool(broken) or media.is_broken
    workers = {"workers": asdict(media.state())} if media.has_processes else {}
    status = {"status": "broken" if is_broken else "ok", "broken": broken, **workers}
    return JSONResponse(status, 503 if is_broken else 200)


async def show_metrics(http: Request) -> Response:
    """Returns all metrics in Prometheus' text format."""
    return Response(generate_latest(http.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
