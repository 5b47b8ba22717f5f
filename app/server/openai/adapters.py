"""vLLM's routes for adapters that come and go: /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field

from vlm_app.server.http.json_bodies import JsonRoute
from vlm_app.server.openai.schema import Body
from vlm_app.server.repository.control import Control

router = APIRouter(prefix="/v1", route_class=JsonRoute)
Name = Annotated[str, Field(min_length=1, max_length=200)]


class LoadBody(Body):
    """An adapter, by the name that requests will have for it and a folder on the server."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]


class UnloadBody(Body):
    lora_name: Name
    lora_int_id: int | None = None  # which vLLM's clients may send, and nobody reads


@router.post("/load_lora_adapter")
async def load(body: LoadBody, http: Request) -> PlainTextResponse:
    control: Control = http.app.state.control
    await control.load_adapter(body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/unload_lora_adapter")
async def unload(body: UnloadBody, http: Request) -> PlainTextResponse:
    control: Control = http.app.state.control
    await control.unload_adapter(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")
