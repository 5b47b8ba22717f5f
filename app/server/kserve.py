"""KServe's inference protocol v2 (Triton's): health, models, infer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from vlm import __version__
from vlm.errors import InputError
from vlm_app.server import tensors
from vlm_app.server.encoder_infer import encode_batch
from vlm_app.server.infer import read_batch, write_batch
from vlm_app.server.limits import unless_gone
from vlm_app.server.model_config import described
from vlm_app.server.service import Service, Services

router = APIRouter(prefix="/v2")
HEADER_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository"]
WITH_LOGPROBS = ("cum_log_probs", "output_log_probs")


@router.get("")
async def server() -> dict[str, Any]:
    return {"name": "vlm", "version": __version__, "extensions": EXTENSIONS}


@router.get("/health/live")
async def live() -> Response:
    return Response()


@router.get("/health/ready")
async def ready(http: Request) -> Response:
    return Response(status_code=200 if all(service.ready for service in _services(http)) else 503)


@router.get("/models/{name}")
@router.get("/models/{name}/versions/{version}")
async def metadata(name: str, http: Request, version: str | None = None) -> dict[str, Any]:
    service = _service(http, name, version)
    made = service.tensors
    shown = {"inputs": [s.metadata() for s in made.inputs], "outputs": [s.metadata() for s in made.outputs]}
    return {"name": name, "versions": [service.version], "platform": "vlm", **shown}


@router.get("/models/{name}/ready")
@router.get("/models/{name}/versions/{version}/ready")
async def model_ready(name: str, http: Request, version: str | None = None) -> Response:
    return Response(status_code=200 if _service(http, name, version).ready else 503)


@router.get("/models/{name}/config")
@router.get("/models/{name}/versions/{version}/config")
async def config(name: str, http: Request, version: str | None = None) -> dict[str, Any]:
    service = _service(http, name, version)
    made = service.tensors
    return {"backend": "vlm", **described(name, service.pipeline.llm.max_batch_size, made.inputs, made.outputs)}


@router.post("/models/{name}/infer")
@router.post("/models/{name}/versions/{version}/infer")
async def infer(name: str, http: Request, version: str | None = None) -> Response:
    """A batch of token ids, or of texts and images."""
    service = _service(http, name, version)
    if (coding := http.headers.get("content-encoding", "identity")) != "identity":
        raise InputError(f"the body is coded as {coding}; send it as it is.")
    request = tensors.read(await http.body(), http.headers.get(HEADER_LENGTH))
    found = await unless_gone(http, _outputs(service, request))
    body, size = tensors.write((name, service.version), request, found)
    if size is None:
        return Response(body, media_type="application/json")
    return Response(body, media_type="application/octet-stream", headers={HEADER_LENGTH: str(size)})


async def _outputs(service: Service, request: tensors.InferRequest) -> dict[str, Any]:
    """Of an encoder alone its states, else what is generated."""
    if not service.pipeline.frontend.generates:
        return await encode_batch(service, request.inputs, request.wanted)
    asked = read_batch(service.pipeline.frontend, request.inputs)
    found = write_batch(service.pipeline.frontend, asked, await service.outputs(asked))
    return service.tensors.typed(_given(request, found), request.inputs, request.wanted)


def _given(request: tensors.InferRequest, outputs: dict[str, Any]) -> dict[str, Any]:
    """Without what was neither asked for by name nor by a flag."""
    left_out = {"text_output"} if {"input_ids", "pixel_values"} & request.inputs.keys() else set()
    flag = request.inputs.get("is_return_log_probs")
    if request.wanted is None and (flag is None or not flag.any()):
        left_out |= set(WITH_LOGPROBS)
    return {name: array for name, array in outputs.items() if name not in left_out}


def _service(http: Request, name: str, version: str | None) -> Service:
    service = _services(http)[name]
    if version not in (None, service.version):
        raise InputError(f"version {version!r} of {name} is not there; there is {service.version}.")
    return service


def _services(http: Request) -> Services:
    return http.app.state.services
