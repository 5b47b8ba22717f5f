"""The server as an ASGI application: models, routes, limits, health."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app.server import embeddings, errors, kserve, openai
from app.server.config import ServerConfig
from app.server.limits import ApiKey, BodyLimit
from app.server.metrics import Metrics
from app.server.service import Service, Services
from vlm import __version__
from vlm.pipeline import Pipeline
from vlm.processing.workers import ImageWorkers, MediaLimits


def create_app(pipelines: Mapping[str, Pipeline], config: ServerConfig) -> FastAPI:
    """Serves loaded models under these names; it owns them from now on."""
    metrics = Metrics()
    workers = ImageWorkers(config.preprocess_workers, MediaLimits(config.max_images, config.max_image_pixels))
    made = [Service(name, p, workers, metrics, config.max_requests) for name, p in pipelines.items()]
    metrics.watch({name: p.llm for name, p in pipelines.items()})

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for service in made:
            service.model.start()
        yield
        for service in made:
            await service.model.close()
        workers.close()

    app = FastAPI(title="vlm", version=__version__, lifespan=lifespan)
    app.state.services, app.state.metrics = Services(made), metrics
    for protocol in (openai, embeddings, kserve):
        app.include_router(protocol.router)
    app.get("/health")(health)
    app.get("/metrics")(show_metrics)
    errors.install(app)
    app.add_middleware(BodyLimit, limit=config.max_body_mb * 2**20)
    if config.api_key is not None:
        app.add_middleware(ApiKey, key=config.api_key)
    return app


async def health(http: Request) -> JSONResponse:
    """200 while every engine runs, else 503."""
    broken = [service.name for service in http.app.state.services if not service.ready]
    return JSONResponse({"status": "broken" if broken else "ok", "broken": broken}, 503 if broken else 200)


async def show_metrics(http: Request) -> Response:
    """Prometheus' text format."""
    return Response(generate_latest(http.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
