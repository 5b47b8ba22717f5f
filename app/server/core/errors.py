"""What goes wrong -> a status and one sentence, in the shape of the protocol that was spoken."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vlm.errors import (
    AdapterNotFoundError,
    EngineError,
    LengthError,
    ModelNotFoundError,
    OutOfMemoryError,
    VlmError,
    counted,
)
from vlm_app.core.names import one_line
from vlm_app.server.core.setting_names import for_clients, param_of

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
# what clients tell errors apart by; OpenAI's other errors have none
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_ERROR_CODES = {ModelNotFoundError: "model_not_found", LengthError: "context_length_exceeded"}
# what a client can do, where the sentence for the command line says what its user can
_ADVICE = {
    AdapterNotFoundError: "GET /v1/models lists the adapters, and POST /v1/load_lora_adapter loads one where the server"
    " of one model was started with --model-control",
}
UNROUTED = (
    "{} is not served here; there are /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models: a client's"
    " base_url ends in /v1."
)
UNROUTED_KSERVE = (
    "{} is not served here; there are /v2/models/NAME, …/infer, …/generate, …/config and others: a NAME with a slash in"
    " it is asked over gRPC or at /v1."
)
# the field of a route's inputs, which is wrong where an error is about an input
INPUTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}
# OpenAI's words, by which litellm knows it, and its code, which langchain-openai looks for in the text
TOO_LONG = "this model's maximum context length is exceeded (context_length_exceeded): "
_KIND = re.compile(r"\[key\]|[a-z]+(-[a-z]+)+|[a-z-]+\[.*\]")  # pydantic's, of a value: no place in a request
_NO_OBJECT = ("dict_type", "model_type", "model_attributes_type")  # pydantic's words for them are Python's
MAX_NAME = 100  # characters of a field or a path


class Busy(VlmError):
    """More was asked than is held at once."""


class Forbidden(VlmError):
    """The server was started without it."""


class Unsupported(VlmError):
    """Triton does it, and this server does not."""


class Loading(VlmError):
    """A model is being loaded, and can be asked later."""

    headers: ClassVar[dict[str, str]] = {"Retry-After": "1"}


class RequestTimeout(VlmError):
    """A request has not ended within the time that it gave itself."""


_STATUS = {
    ModelNotFoundError: 404,
    Busy: 429,
    Forbidden: 403,
    EngineError: 503,
    Loading: 503,
    RequestTimeout: 503,
    Unsupported: 501,
    OutOfMemoryError: 503,
    ClientDisconnect: 499,
}


def status_of(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    statuses = [status for kind, status in _STATUS.items() if isinstance(error, kind)]
    return statuses[0] if statuses else 400 if isinstance(error, VlmError | RequestValidationError) else 500


def sentence(error: Exception, path: str) -> str:
    """Returns one line, of bounded length whatever the client has sent. `path`: of the route, whose protocol has names
    of its own for settings."""
    if isinstance(error, RequestValidationError):
        text = _first(error.errors()[0])
    elif isinstance(error, HTTPException):
        text = f"{error.detail}".rstrip(".") + "."
    else:
        text = _with_advice(error, path) if isinstance(error, VlmError) else "the server failed; its log says where."
    return one_line(text)


def _with_advice(error: VlmError, path: str) -> str:
    message = for_clients(error, path)
    advice = next((words for kind, words in _ADVICE.items() if isinstance(error, kind)), None)
    return f"{message.removesuffix('.')}; {advice}." if advice else message


def _first(error: dict[str, Any]) -> str:
    parts = [str(part) for part in error["loc"][1:]]
    place = ".".join(parts[:1] + [part for part in parts[1:] if not _KIND.fullmatch(part)])
    if not place and error["type"] in _NO_OBJECT:
        return 'the request is no JSON object; send one that has the fields of this route: {"model": …}.'
    reason = _reason(error)
    return f"{reason}." if error["type"] in ("value_error", "refused") or not place else f"{place}: {reason}."


def _reason(error: dict[str, Any]) -> str:
    """Returns what is wrong with a value, in JSON's words."""
    if error["type"] in _NO_OBJECT:
        return "Input should be an object"
    if error["type"] == "too_short":
        return f"it has {counted(error['ctx']['actual_length'], 'entry', 'entries')}; give at least one"
    return str(error["msg"]).removeprefix("Value error, ").rstrip(".")


def body(error: Exception, path: str) -> dict[str, Any]:
    """Returns an error in OpenAI's shape, or KServe's."""
    if path.startswith("/v2"):
        return {"error": _said(error, path, UNROUTED_KSERVE)}
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    # OpenAI's clients look for these words
    message = f"{TOO_LONG if isinstance(error, LengthError) else ''}{_said(error, path, UNROUTED)}"
    return {"error": {"message": message, "type": kind, "param": _param(error, path), "code": _code(error)}}


def _said(error: Exception, path: str, unrouted: str) -> str:
    """Returns the sentence; `unrouted`: of a path that no route has."""
    if isinstance(error, HTTPException) and (error.status_code, error.detail) == (404, "Not Found"):
        return unrouted.format(one_line(path, MAX_NAME))
    if (
        isinstance(error, HTTPException)
        and error.status_code == 405
        and (methods := (error.headers or {}).get("Allow"))
    ):
        return f"{one_line(path, MAX_NAME)} is asked by another method; use {methods}."
    return sentence(error, path)


def _code(error: Exception) -> str | None:
    """Returns a word or none: many clients do not read numbers there."""
    codes = [code for kind, code in _ERROR_CODES.items() if isinstance(error, kind)]
    return codes[0] if codes else _CODES.get(status_of(error))


def _param(error: Exception, path: str) -> str | None:
    """Returns the field that is wrong."""
    if isinstance(error, ModelNotFoundError):
        return "model"
    if not isinstance(error, RequestValidationError):
        is_about_input = isinstance(error, VlmError) and error.is_about_input
        return param_of(error, path) or (INPUTS.get(path.rstrip("/")) if is_about_input else None)
    first = error.errors()[0]
    place = next((part for part in first["loc"][1:] if isinstance(part, str)), None)
    name = first.get("ctx", {}).get("param", place)
    return name and one_line(name, MAX_NAME)


def response(error: Exception, path: str) -> JSONResponse:
    status = status_of(error)
    headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status, {})
    own_headers = getattr(error, "headers", None) or {}  # 405 says what is allowed
    return JSONResponse(body(error, path), status, {**own_headers, **headers})


def install(app: Starlette) -> None:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return response(error, request.url.path)

    for kind in (VlmError, HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, answer)
