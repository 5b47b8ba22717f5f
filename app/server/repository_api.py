"""The routes of KServe's model repository extension."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.server.control import Control
from vlm.errors import InputError

router = APIRouter(prefix="/v2/repository")


@router.post("/index")
async def index(http: Request) -> JSONResponse:
    """Every model, or with `{"ready": true}` those that can be asked."""
    body = await http.body()
    try:
        asked = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        raise InputError("the request is no JSON.") from None
    return JSONResponse(_control(http).index(isinstance(asked, dict) and asked.get("ready") is True))


@router.post("/models/{name}/load")
async def load(name: str, http: Request) -> Response:
    await _control(http).load(name)
    return Response()


@router.post("/models/{name}/unload")
async def unload(name: str, http: Request) -> Response:
    await _control(http).unload(name)
    return Response()


def _control(http: Request) -> Control:
    return http.app.state.control
