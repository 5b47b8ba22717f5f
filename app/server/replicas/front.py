"""The front as an ASGI application: the server's own checks, and the replicas behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Route

from vlm_app.server.app import add_guards
from vlm_app.server.core import errors
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas.control import ModelControl
from vlm_app.server.replicas.forwarding import Forwarding
from vlm_app.server.replicas.replica import Replica
from vlm_app.server.replicas.router import Router
from vlm_app.server.replicas.status import Health, Metrics
from vlm_app.server.replicas.supervisor import Supervisor

if TYPE_CHECKING:
    from vlm_app.server.replicas.grpc_front import GrpcFront


def create_front(supervisor: Supervisor, config: ServerConfig) -> Starlette:
    """Serves what replicas that have been started serve."""
    router = Router([replica.name for replica in supervisor.replicas])
    forwarding, control = Forwarding(supervisor, router), ModelControl(supervisor)
    health, metrics = Health(supervisor.replicas, router), Metrics(supervisor, router, forwarding)
    grpc = None if config.grpc_address is None else _grpc(supervisor, router, forwarding, control, config)

    async def prepare(replica: Replica) -> None:
        if grpc is not None:
            await grpc.connect(replica)
        await control.prepare(replica)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with supervisor.running(prepare, router.forget):
            if grpc is not None:
                app.state.grpc = await grpc.start()
            yield
            if grpc is not None:
                await grpc.close()

    routes = [
        Route("/health", health.health),
        Route("/metrics", metrics.page),
        Route("/v2/health/live", health.live),
        Route("/v2/health/ready", health.ready),
        Route("/v2/repository/index", control.index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", control.change, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", control.change, methods=["POST"]),
        Route("/v1/load_lora_adapter", control.refuse_adapters, methods=["POST"]),
        Route("/v1/unload_lora_adapter", control.refuse_adapters, methods=["POST"]),
        Route("/v2/models/stats", control.statistics),
        Route("/v2/models/{name}/stats", control.statistics),
        Route("/v2/models/{name}/versions/{version}/stats", control.statistics),
        Route("/{path:path}", forwarding),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.grpc = None
    errors.install(app)
    add_guards(app, config)
    return app


def _grpc(
    supervisor: Supervisor, router: Router, forwarding: Forwarding, control: ModelControl, config: ServerConfig
) -> GrpcFront:
    from vlm_app.server.replicas.grpc_forwarding import GrpcForwarding
    from vlm_app.server.replicas.grpc_front import GrpcFront

    return GrpcFront(supervisor, GrpcForwarding(forwarding, router), control, config)
