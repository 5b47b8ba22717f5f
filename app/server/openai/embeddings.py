"""OpenAI's /v1/embeddings: what a model's encoder makes of texts and images, as one vector each."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vlm.api.outputs import Encoding
from vlm.errors import InputError, LimitError
from vlm_app.server.core.data_uris import decode_data_uri, is_data_uri
from vlm_app.server.core.messages import verbatim
from vlm_app.server.core.setting_names import about_input
from vlm_app.server.http.json_bodies import JsonRoute
from vlm_app.server.http.limits import cancel_on_disconnect
from vlm_app.server.openai.schema import EmbeddingBody
from vlm_app.server.repository.service import Service, services_of

if TYPE_CHECKING:
    from torch import Tensor

router = APIRouter(prefix="/v1", route_class=JsonRoute)


@router.post("/embeddings")
async def embeddings(body: EmbeddingBody, http: Request) -> Response:
    """The mean of an input's encoder rows, at unit length; a data URI of an image stands for the image."""
    service, adapter = services_of(http).asked(body.model)
    vectors = await cancel_on_disconnect(http, _vectors(service, body, adapter))
    return await asyncio.to_thread(_written, body, vectors)


def _written(body: EmbeddingBody, vectors: list[tuple[Tensor, int]]) -> Response:
    """Returns the answer, which may have millions of values."""
    rows = [_row(i, _shortened(vector, body), body.encoding_format) for i, (vector, _) in enumerate(vectors)]
    num_rows = sum(count for _, count in vectors)
    usage = {"prompt_tokens": num_rows, "total_tokens": num_rows}
    return JSONResponse({"object": "list", "model": body.model, "data": rows, "usage": usage})


async def _vectors(service: Service, body: EmbeddingBody, adapter: dict[str, str]) -> list[tuple[Tensor, int]]:
    """Returns each input's vector and the rows that it was read as; `adapter`: of what reads texts."""
    vectors: list[tuple[Tensor, int]] = []
    with service.statistics.request(len(body.inputs)):
        for inputs in service.encoder_batches(body.inputs):
            sources, files = await asyncio.to_thread(_read, service, inputs, body.truncate)
            sources = [source | (adapter if source else {}) | body.of_inputs for source in sources]
            encodings = await service.encode(sources, files)
            vectors += [(_vector(each), len(each.last_hidden_state)) for each in encodings]
    return vectors


@about_input()
def _read(service: Service, inputs: list[str | list[int]], truncate: bool | int) -> tuple[list[Any], list[list[bytes]]]:
    files = [[decode_data_uri(each)] if _is_image(each) else [] for each in inputs]
    texts = zip(files, inputs, strict=True)
    return [{} if own else _text(service, each, truncate) for own, each in texts], files


def _text(service: Service, given: str | list[int], truncate: bool | int) -> dict[str, Any]:
    """Returns a text or token ids as an encoder reads them. Raises InputError for a model whose encoder is of images
    alone."""
    capabilities = service.pipeline.capabilities
    if capabilities.takes_images and not capabilities.has_text_encoder:
        name = service.pipeline.family.name
        raise InputError(f"{name} has embeddings of images alone; send one as data:image/png;base64,….")
    return verbatim(service.pipeline, given, truncate)


def _is_image(value: str | list[int]) -> bool:
    return isinstance(value, str) and is_data_uri(value, "image/")


def _shortened(vector: Tensor, body: EmbeddingBody) -> Tensor:
    """Returns [dimensions] float32: the first values, at unit length again, as OpenAI shortens them."""
    if body.dimensions is None:
        return vector
    if body.dimensions > len(vector):
        raise LimitError(
            f"dimensions is {body.dimensions}, the embeddings of {body.model} have {len(vector)}; ask for no more than"
            " that, or leave it out.",
            settings=("dimensions",),
        )
    return _unit(vector[: body.dimensions])


def _vector(encoding: Encoding) -> Tensor:
    """[hidden] float32"""
    return _unit(encoding.last_hidden_state.float().mean(0))


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm().clamp(min=1e-12)


def _row(index: int, vector: Tensor, form: str) -> dict[str, Any]:
    little_endian = vector.numpy().astype("<f4")
    data = vector.tolist() if form == "float" else base64.b64encode(little_endian.tobytes()).decode()
    return {"object": "embedding", "index": index, "embedding": data}
