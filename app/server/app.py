"""The server as an ASGI application: models, routes, limits, health."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vlm import __version__
from vlm.pipeline import Pipeline
from vlm.processing.workers import ImageWorkers, MediaLimits
from vlm_app.server import embeddings, errors, kserve, openai, repository_api
from vlm_app.server.config import ServerConfig
from vlm_app.server.control import Control, Repositories
from vlm_app.server.limits import ApiKey, BodyLimit
from vlm_app.server.metrics import Metrics
from vlm_app.server.service import Service, Services


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
    workers = ImageWorkers(config.preprocess_workers, MediaLimits(config.max_images, config.max_image_pixels))
    metrics.watch(lambda: {service.name: service.pipeline.llm for service in services})
    loaded = repositories.loaded if repositories else {}

    def add(name: str, pipeline: Pipeline, version: str) -> Service:
        datatypes = loaded[name].config.datatypes if name in loaded else None
        services.add(Service(name, pipeline, workers, metrics, config.max_requests, version, on_break, datatypes))
        return services[name]

    for name in list(pipelines):
        add(name, pipelines.pop(name), loaded[name].version if name in loaded else "1")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services.start()  # a loop here would hold the last one
        yield
        for service in services:
            await service.close()
        workers.close()

    def serve(name: str, pipeline: Pipeline, version: str) -> None:
        add(name, pipeline, version).model.start()

    app = FastAPI(title="vlm", version=__version__, lifespan=lifespan)
    app.state.services, app.state.metrics = services, metrics
    app.state.control = Control(services, repositories, serve, config.model_control, config.drain_seconds)
    _route(app, config)
    return app


def _route(app: FastAPI, config: ServerConfig) -> None:
    for protocol in (openai, embeddings, kserve, repository_api):
        app.include_router(protocol.router)
    app.get("/health")(health)
    app.get("/metrics")(show_metrics)
    errors.install(app)
    app.add_middleware(BodyLimit, limit=config.max_body_mb * 2**20)
    if config.api_key is not None:
        app.add_middleware(ApiKey, key=config.api_key)


async def health(http: Request) -> JSONResponse:
    """200 while every engine runs, else 503."""
    broken = [service.name for service in http.app.state.services if not service.ready]
    return JSONResponse({"status": "broken" if broken else "ok", "broken": broken}, 503 if broken else 200)


async def show_metrics(http: Request) -> Response:
    """Prometheus' text format."""
    return Response(generate_latest(http.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
