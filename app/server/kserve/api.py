"""KServe's inference protocol v2 (Triton's) over HTTP: health, models, infer."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vlm_app.server.http.limits import cancel_on_disconnect
from vlm_app.server.kserve.descriptions import find, model_config, model_metadata, model_statistics, server_metadata
from vlm_app.server.kserve.inferences import read_inference
from vlm_app.server.repository.service import Service, services_of
from vlm_app.server.tensors import wire as tensors

router = APIRouter(prefix="/v2")
HEADER_LENGTH = "Inference-Header-Content-Length"


@router.get("")
async def server() -> dict[str, Any]:
    return server_metadata()


@router.get("/health/live")
async def live() -> dict[str, bool]:
    return {"live": True}


@router.get("/health/ready")
async def ready(http: Request) -> JSONResponse:
    is_ready = all(service.ready for service in services_of(http))
    return JSONResponse({"live": True, "ready": is_ready}, 200 if is_ready else 503)


@router.get("/models/stats")
async def all_statistics(http: Request) -> dict[str, Any]:
    return model_statistics(services_of(http), None, None)


@router.get("/models/{name}")
@router.get("/models/{name}/versions/{version}")
async def metadata(name: str, http: Request, version: str | None = None) -> dict[str, Any]:
    return model_metadata(service_of(http, name, version))


@router.get("/models/{name}/ready")
@router.get("/models/{name}/versions/{version}/ready")
async def model_ready(name: str, http: Request, version: str | None = None) -> JSONResponse:
    is_ready = service_of(http, name, version).ready
    return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)


@router.get("/models/{name}/config")
@router.get("/models/{name}/versions/{version}/config")
async def config(name: str, http: Request, version: str | None = None) -> dict[str, Any]:
    return model_config(service_of(http, name, version))


@router.get("/models/{name}/stats")
@router.get("/models/{name}/versions/{version}/stats")
async def statistics(name: str, http: Request, version: str | None = None) -> dict[str, Any]:
    return model_statistics(services_of(http), name, version)


@router.post("/models/{name}/infer")
@router.post("/models/{name}/versions/{version}/infer")
async def infer(name: str, http: Request, version: str | None = None) -> Response:
    """A batch of token ids, or of texts and images."""
    service = service_of(http, name, version)
    content = await http.body()
    # nothing of a request's size is worked on in the event loop, which answers everybody
    request = await asyncio.to_thread(tensors.read, content, http.headers.get(HEADER_LENGTH))
    inference = await asyncio.to_thread(read_inference, service, request)
    outputs = await cancel_on_disconnect(http, inference.outputs())
    body, size = await asyncio.to_thread(tensors.write, (name, service.version), request, outputs)
    if size is None:
        return Response(body, media_type="application/json")
    return Response(body, media_type="application/octet-stream", headers={HEADER_LENGTH: str(size)})


def service_of(http: Request, name: str, version: str | None) -> Service:
    return find(services_of(http), name, version)
