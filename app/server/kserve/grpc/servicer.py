"""The calls of KServe's and Triton's gRPC service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from vlm.errors import InputError, ModelNotFoundError
from vlm_app.server.core.errors import Unsupported
from vlm_app.server.kserve import descriptions, unserved
from vlm_app.server.kserve.grpc import messages
from vlm_app.server.kserve.grpc.failures import refusals
from vlm_app.server.kserve.grpc.health import health_service
from vlm_app.server.kserve.grpc.streams import InferStream
from vlm_app.server.kserve.inferences import read_inference
from vlm_app.server.kserve.repository_api import check_unload
from vlm_app.server.repository.control import Control
from vlm_app.server.repository.service import Service, Services

Context = grpc.aio.ServicerContext


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers as the HTTP routes of the same names do."""

    def __init__(self, services: Services, control: Control, max_bytes: int):
        """`max_bytes`: of a request, and of those of a stream that run at once."""
        self._services, self._control, self._max_bytes = services, control, max_bytes

    def register(self, server: grpc.aio.Server) -> None:
        """Lets a server answer the service's calls so, and checks of its health."""
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)
        server.add_generic_rpc_handlers((health_service(self._is_ready),))

    # --- health and descriptions ---
    async def ServerLive(self, request: Any, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._is_ready())

    async def ModelReady(self, request: Any, context: Context) -> pb.ModelReadyResponse:
        """Says of a model that is not there that it is not ready, as Triton does."""
        try:
            return pb.ModelReadyResponse(ready=self._find(request).ready)
        except ModelNotFoundError:
            return pb.ModelReadyResponse(ready=False)

    async def ServerMetadata(self, request: Any, context: Context) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(**descriptions.server_metadata())

    async def ModelMetadata(self, request: Any, context: Context) -> pb.ModelMetadataResponse:
        async with refusals(context):
            return ParseDict(descriptions.model_metadata(self._find(request)), pb.ModelMetadataResponse())

    async def ModelConfig(self, request: Any, context: Context) -> pb.ModelConfigResponse:
        async with refusals(context):
            return ParseDict({"config": descriptions.model_config(self._find(request))}, pb.ModelConfigResponse())

    async def ModelStatistics(self, request: Any, context: Context) -> pb.ModelStatisticsResponse:
        async with refusals(context):
            statistics = descriptions.model_statistics(self._services, request.name, request.version)
            return ParseDict(statistics, pb.ModelStatisticsResponse())

    # --- inference ---
    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> bytes:
        async with refusals(context):
            service = descriptions.find(self._services, request.model_name, request.model_version)
            # nothing of a request's size is worked on in the event loop, which answers everybody
            infer_request = await asyncio.to_thread(messages.read, request)
            outputs = await (await asyncio.to_thread(read_inference, service, infer_request)).outputs()
            return await asyncio.to_thread(messages.write, (service.name, service.version), infer_request, outputs)

    async def ModelStreamInfer(self, requests: AsyncIterator[pb.ModelInferRequest], context: Context) -> None:
        await InferStream(self._services, context, self._max_bytes).serve(requests)

    # --- the repository ---
    async def RepositoryIndex(self, request: Any, context: Context) -> pb.RepositoryIndexResponse:
        async with refusals(context):
            if request.repository_name:
                raise InputError("repositories have no names here; leave repository_name out.")
            return ParseDict({"models": self._control.index(request.ready)}, pb.RepositoryIndexResponse())

    async def RepositoryModelLoad(self, request: Any, context: Context) -> pb.RepositoryModelLoadResponse:
        async with refusals(context):
            if request.parameters:
                raise InputError("a load takes no parameters here; what a model is stands in its repository.")
            await self._control.load(request.model_name)
            return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> pb.RepositoryModelUnloadResponse:
        async with refusals(context):
            check_unload(request.parameters)
            await self._control.unload(request.model_name)
            return pb.RepositoryModelUnloadResponse()

    # --- what is not done ---
    async def SystemSharedMemoryStatus(self, request: Any, context: Context) -> pb.SystemSharedMemoryStatusResponse:
        return pb.SystemSharedMemoryStatusResponse()

    async def CudaSharedMemoryStatus(self, request: Any, context: Context) -> pb.CudaSharedMemoryStatusResponse:
        return pb.CudaSharedMemoryStatusResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Context) -> Any:
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryUnregister(self, request: Any, context: Context) -> Any:
        return pb.CudaSharedMemoryUnregisterResponse()

    async def SystemSharedMemoryRegister(self, request: Any, context: Context) -> None:
        await _unserved(context, unserved.SHARED_MEMORY)

    async def CudaSharedMemoryRegister(self, request: Any, context: Context) -> None:
        await _unserved(context, unserved.SHARED_MEMORY)

    async def TraceSetting(self, request: Any, context: Context) -> None:
        await _unserved(context, unserved.TRACES)

    async def LogSettings(self, request: Any, context: Context) -> None:
        await _unserved(context, unserved.LOGS)

    def _is_ready(self) -> bool:
        return all(service.ready for service in self._services)

    def _find(self, request: Any) -> Service:
        return descriptions.find(self._services, request.name, request.version)


async def _unserved(context: Context, sentence: str) -> None:
    async with refusals(context):
        raise Unsupported(sentence)
