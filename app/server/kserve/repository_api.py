"""The routes of KServe's model repository extension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vlm.errors import InputError, listed
from vlm_app.server.http.json_bodies import parse_body
from vlm_app.server.repository.control import Control
from vlm_app.server.tensors.parameters import read_parameters

router = APIRouter(prefix="/v2/repository")


@router.post("/index")
async def index(http: Request) -> JSONResponse:
    """Every model, or with `{"ready": true}` those that can be asked."""
    return JSONResponse(_control(http).index((await _body(http)).get("ready") is True))


@router.post("/models/{name}/load")
async def load(name: str, http: Request) -> Response:
    if (await _body(http)).get("parameters"):
        raise InputError("a load takes no parameters here; what a model is stands in its repository.")
    await _control(http).load(name)
    return Response()


@router.post("/models/{name}/unload")
async def unload(name: str, http: Request) -> Response:
    check_unload(read_parameters(await _body(http), "the request"))
    await _control(http).unload(name)
    return Response()


def check_unload(parameters: Iterable[str]) -> None:
    """Raises InputError for one but Triton's `unload_dependents`: an ensemble is one model here, with no others."""
    if unknown := [name for name in parameters if name != "unload_dependents"]:
        raise InputError(f"an unload takes no parameter {listed(unknown)}; leave it out.")


async def _body(http: Request) -> dict[str, Any]:
    body = await parse_body(await http.body() or b"{}")
    if not isinstance(body, dict):
        raise InputError("the body is no JSON object; send one, or none.")
    return body


def _control(http: Request) -> Control:
    return http.app.state.control
