"""OpenAI's /v1/embeddings: what a model's encoder makes of texts and images, as one vector each."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from vlm.outputs import Encoding
from vlm_app.server.json_bodies import JsonRoute
from vlm_app.server.limits import unless_gone
from vlm_app.server.messages import decode_data_uri, verbatim
from vlm_app.server.openai_schema import EmbeddingBody
from vlm_app.server.service import Service, Services

if TYPE_CHECKING:
    from torch import Tensor

router = APIRouter(prefix="/v1", route_class=JsonRoute)


@router.post("/embeddings")
async def embeddings(body: EmbeddingBody, http: Request) -> dict[str, Any]:
    """The mean of an input's encoder rows, at unit length; a data URI of an image stands for the image."""
    services: Services = http.app.state.services
    service = services[body.model]
    encodings = await unless_gone(http, _encoded(service, body.inputs))
    rows = [_row(i, _vector(e), body.encoding_format) for i, e in enumerate(encodings)]
    read = sum(len(e.last_hidden_state) for e in encodings)
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "model": body.model, "data": rows, "usage": usage}


async def _encoded(service: Service, inputs: list[str | list[int]]) -> list[Encoding]:
    files = await asyncio.to_thread(_files, inputs)
    sources = [{} if own else verbatim(service.pipeline, each) for own, each in zip(files, inputs, strict=True)]
    with service.admitted(len(inputs)):
        return await service.model.encode(sources, files)


def _files(inputs: list[str | list[int]]) -> list[list[bytes]]:
    return [[decode_data_uri(each)] if _is_image(each) else [] for each in inputs]


def _is_image(given: str | list[int]) -> bool:
    return isinstance(given, str) and given.startswith("data:image/")


def _vector(encoding: Encoding) -> Tensor:
    """[hidden] float32"""
    mean = encoding.last_hidden_state.float().mean(0)
    return mean / mean.norm().clamp(min=1e-12)


def _row(index: int, vector: Tensor, form: str) -> dict[str, Any]:
    little_endian = vector.numpy().astype("<f4")
    shown = vector.tolist() if form == "float" else base64.b64encode(little_endian.tobytes()).decode()
    return {"object": "embedding", "index": index, "embedding": shown}
