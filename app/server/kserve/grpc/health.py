"""gRPC's own health service, by which Kubernetes' probes ask whether a server takes calls.

https://github.com/grpc/grpc: doc/health-checking.md, src/proto/grpc/health/v1/health.proto. A client that watches
instead of asking takes a server without `Watch` for a healthy one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from starlette.exceptions import HTTPException
from tritonclient.grpc import service_pb2 as pb

from vlm_app.server.kserve.grpc.failures import refusals

SERVICES = ("", "inference.GRPCInferenceService")  # the server as a whole, and KServe's, which is all of it
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # a HealthCheckResponse: `status`, its first field


def health_service(is_ready: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """Returns what answers `Check` of a server. A service that it does not have is NOT_FOUND."""

    async def check(request: Any, context: grpc.aio.ServicerContext) -> bytes:
        async with refusals(context):
            if request.name not in SERVICES:
                raise HTTPException(404, "this service is not here; leave service out of the check")
            return SERVING if is_ready() else NOT_SERVING

    # a HealthCheckRequest has the form of this message: a name alone
    read = pb.SystemSharedMemoryStatusRequest.FromString
    handler = grpc.unary_unary_rpc_method_handler(check, read, bytes)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})
