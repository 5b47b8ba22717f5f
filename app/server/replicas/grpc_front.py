"""The gRPC server before replicas: calls about them all are answered here, the others by one of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from starlette.exceptions import HTTPException
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as pb

from vlm_app.server.core.config import ServerConfig
from vlm_app.server.kserve.grpc.failures import refusals
from vlm_app.server.kserve.grpc.health import health_service
from vlm_app.server.kserve.grpc.server import GrpcServer
from vlm_app.server.replicas.control import ModelControl
from vlm_app.server.replicas.grpc_forwarding import SERVICE, Context, GrpcForwarding
from vlm_app.server.replicas.replica import UpstreamRequest
from vlm_app.server.replicas.supervisor import Supervisor

Answer = Callable[[Any, Context], Awaitable[Message]]


class GrpcFront:
    """Serves gRPC from `start` to `close`, within one event loop."""

    def __init__(self, supervisor: Supervisor, forwarding: GrpcForwarding, control: ModelControl, config: ServerConfig):
        self._supervisor, self._forwarding, self._control = supervisor, forwarding, control
        self._config = config
        self.connect = forwarding.connect  # to a replica that has been started again

    async def start(self) -> GrpcServer:
        """Listens once every replica takes calls. Raises InputError where it cannot."""
        for replica in self._supervisor.ready.values():
            await self.connect(replica)
        self._server = GrpcServer(self._register, self._config)
        await self._server.start()
        return self._server

    async def close(self) -> None:
        await self._server.drain()
        await self._forwarding.close()

    def _register(self, server: grpc.aio.Server) -> None:
        own = {
            "ServerLive": _handler(self._live, pb.ServerLiveRequest),
            "ServerReady": _handler(self._ready, pb.ServerReadyRequest),
            "ModelStatistics": _handler(self._statistics, pb.ModelStatisticsRequest),
            "RepositoryIndex": _handler(self._index, pb.RepositoryIndexRequest),
            "RepositoryModelLoad": _handler(self._load, pb.RepositoryModelLoadRequest),
            "RepositoryModelUnload": _handler(self._unload, pb.RepositoryModelUnloadRequest),
        }
        handlers = self._forwarding.handlers() | own
        service = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)
        server.add_generic_rpc_handlers((service, health_service(self._is_ready)))

    async def _live(self, request: Any, context: Context) -> Message:
        return pb.ServerLiveResponse(live=True)

    async def _ready(self, request: Any, context: Context) -> Message:
        return pb.ServerReadyResponse(ready=self._is_ready())

    def _is_ready(self) -> bool:
        return bool(self._supervisor.ready)

    async def _statistics(self, request: Any, context: Context) -> Message:
        model = f"/{_in_path(request.name)}" if request.name else ""
        version = f"/versions/{_in_path(request.version)}" if request.version else ""
        asked = UpstreamRequest("GET", f"/v2/models{model}{version}/stats")
        return ParseDict(_content(await self._control.all_statistics(asked)), pb.ModelStatisticsResponse())

    async def _index(self, request: Any, context: Context) -> Message:
        rows = _content(await self._control.common_index(_posted("/v2/repository/index", request)))
        return ParseDict({"models": rows}, pb.RepositoryIndexResponse())

    async def _load(self, request: Any, context: Context) -> Message:
        path = f"/v2/repository/models/{_in_path(request.model_name)}/load"
        _content(await self._control.changed(_posted(path, request)))
        return pb.RepositoryModelLoadResponse()

    async def _unload(self, request: Any, context: Context) -> Message:
        path = f"/v2/repository/models/{_in_path(request.model_name)}/unload"
        _content(await self._control.changed(_posted(path, request)))
        return pb.RepositoryModelUnloadResponse()


def _handler(answer: Answer, kind: Any) -> grpc.RpcMethodHandler:
    async def answered(request: Any, context: Context) -> bytes:
        async with refusals(context):
            return (await answer(request, context)).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(answered, kind.FromString, bytes)


def _in_path(name: str) -> str:
    return quote(name, safe="")


def _posted(path: str, request: Message) -> UpstreamRequest:
    """Returns the HTTP request of the same name, whose fields are the same."""
    body = json.dumps(MessageToDict(request, preserving_proto_field_name=True)).encode()
    return UpstreamRequest("POST", path, [("content-type", "application/json")], body)


def _content(response: Response) -> Any:
    """Returns what replicas say. Raises their refusal."""
    body = bytes(response.body)
    if response.status_code != 200:
        raise HTTPException(response.status_code, json.loads(body)["error"])
    return json.loads(body) if body else None
