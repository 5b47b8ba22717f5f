"""Triton's generate extension: tensors and parameters by their names in one flat JSON object, in and out.

https://github.com/triton-inference-server/server: docs/protocol/extension_generate.md. The parameters of KServe's own
generate routes (https://github.com/kserve/open-inference-protocol: generate_rest.yaml) are read too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response as HttpResponse

from vlm.errors import InputError, LimitError
from vlm.limits import MAX_STOPS
from vlm_app.server.core.setting_names import calling
from vlm_app.server.http.event_stream import event_stream
from vlm_app.server.http.json_bodies import parse_json
from vlm_app.server.http.limits import cancel_on_disconnect
from vlm_app.server.kserve.api import service_of
from vlm_app.server.kserve.descriptions import specs
from vlm_app.server.kserve.inferences import read_inference
from vlm_app.server.repository.service import Service
from vlm_app.server.tensors.aliases import by_own_names, sent_names
from vlm_app.server.tensors.json_parts import json_parts
from vlm_app.server.tensors.settings import SCALARS, STREAM
from vlm_app.server.tensors.specs import TASK_NAME, TENSORS_IN, TensorSpec, check_names
from vlm_app.server.tensors.values import json_values
from vlm_app.server.tensors.wire import request_from

router = APIRouter(prefix="/v2/models/{name}")
DRAWS = ("runtime_top_k", "runtime_top_p", "beam_width")


@router.post("/generate")
@router.post("/versions/{version}/generate")
async def generate(name: str, http: Request, version: str | None = None) -> HttpResponse:
    """Gives all of the output at once."""
    generation = await _read_generation(http, name, version)
    if generation.stream:
        with calling(generation.sent_names):
            raise InputError("the parameter stream is true; send the request to generate_stream.")
    outputs = await cancel_on_disconnect(http, generation.inference.outputs())
    return HttpResponse(await asyncio.to_thread(generation.to_json, outputs), media_type="application/json")


@router.post("/generate_stream")
@router.post("/versions/{version}/generate_stream")
async def generate_stream(name: str, http: Request, version: str | None = None) -> HttpResponse:
    """Sends events, each of which holds all of the output so far."""
    generation = await _read_generation(http, name, version)
    return await event_stream(http, generation.responses())


async def _read_generation(http: Request, name: str, version: str | None) -> Generation:
    """Reads a request off the event loop, which answers everybody."""
    return await asyncio.to_thread(Generation, service_of(http, name, version), await http.body())


class Generation:
    """A request of the extension. Raises InputError with one sentence."""

    def __init__(self, service: Service, body: bytes):
        self._service = service
        fields, sent = _read(body)
        self.sent_names = sent
        self._id = fields.pop("id", None)
        if _switch(fields, "details"):
            raise InputError("the parameter details is true; ask for log-probabilities with is_return_log_probs.")
        stop = _stop(fields.pop("stop", None))
        with calling(sent):
            self.stream = _switch(fields, STREAM)
            request = replace(request_from(self._head(fields), memoryview(b"")), sent_names=sent)
        self.inference = read_inference(service, request, stop=stop)

    async def responses(self) -> AsyncGenerator[str, None]:
        """Yields what there is after each burst; with `stream` false, and of models that are not decoupled, once."""
        if self.stream is False:
            yield await asyncio.to_thread(self.to_json, await self.inference.outputs())
            return
        async with aclosing(self.inference.responses()) as responses:
            async for response in responses:
                yield await asyncio.to_thread(self.to_json, response.outputs)

    def to_json(self, outputs: Mapping[str, np.ndarray]) -> str:
        """Returns an object of flat lists, and of single values as they are."""
        own = {} if self._id is None else {"id": self._id}
        head = {**own, "model_name": self._service.name, "model_version": self._service.version}
        return "".join(json_parts(head, **{name: _written(name, array) for name, array in outputs.items()}))

    def _head(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Returns the same as a request of the inference protocol."""
        inputs = {spec.name: spec for spec in specs(self._service)[0] if spec.name not in SCALARS}
        options = {name: value for name, value in fields.items() if name not in inputs}
        check_names([name for name in options if name in TENSORS_IN], inputs.values())
        if options.get("temperature") and not any(name in options for name in DRAWS):
            options["runtime_top_p"] = 1.0  # FasterTransformer draws by top-k or top-p alone
        tensors = [_tensor(inputs[name], value) for name, value in fields.items() if name in inputs]
        return {"id": self._id, "parameters": options, "inputs": tensors}


def _read(body: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns (the object's fields and those of its `parameters` by their names here, what it calls them)."""
    content = parse_json(body)
    inner = content.pop("parameters", None) or {} if isinstance(content, dict) else None
    if not isinstance(inner, dict):
        raise InputError('the request must be an object: {"text_input": …, "parameters": {…}}.')
    # null is as good as left out, as in OpenAI's protocol
    fields = [(name, value) for name, value in (*content.items(), *inner.items()) if value is not None]
    return by_own_names(fields), sent_names(name for name, _ in fields)


def _tensor(spec: TensorSpec, value: Any) -> dict[str, Any]:
    """Returns an input of the shape that Triton finds: the innermost open size takes what the others leave."""
    values = value if isinstance(value, list) else [value]
    if any(isinstance(each, list | dict) for each in values):
        raise InputError(f"{spec.name} is nested; give one value or a flat list.")
    shape, rest = [-1, *spec.shape], len(values)
    for size in spec.shape:
        rest //= size if size > 0 else 1
    innermost = max(place for place, size in enumerate(shape) if size < 0)
    shape = [rest if place == innermost else abs(size) for place, size in enumerate(shape)]
    numbered = spec.name == TASK_NAME.name and all(type(each) is int for each in values)
    return {"name": spec.name, "datatype": "INT64" if numbered else spec.datatype, "shape": shape, "data": values}


def _switch(fields: dict[str, Any], name: str) -> bool | None:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"the parameter {name} must be true or false.")
    return value


def _stop(value: Any) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value or []
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise InputError("the parameter stop must be a text or a list of texts.")
    if len(words) > MAX_STOPS:  # each is looked for in every piece of a text
        raise LimitError(f"the parameter stop has {len(words):,} strings; give at most {MAX_STOPS}.")
    return tuple(words)


def _written(name: str, array: np.ndarray) -> Iterable[str]:
    parts = json_values(name, array, _plain)
    return [*parts][1:-1] if array.size == 1 else parts


def _plain(value: Any) -> Any:
    """Returns what JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
