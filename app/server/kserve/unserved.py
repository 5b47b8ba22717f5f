"""Triton's routes for what this server does not do: shared memory, traces, settings of its log.

Nothing is ever registered, so that a status is empty and an end of all registrations is done.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from vlm_app.server.core.errors import Unsupported

router = APIRouter(prefix="/v2", include_in_schema=False)
SHARED_MEMORY = "shared memory is not served; send tensors in the request."
TRACES = "traces are not recorded here; /metrics and …/stats tell how long requests take."
LOGS = "the log's settings are not changed while the server runs; it writes warnings and errors to stderr."
REGIONS = ("/{kind}sharedmemory", "/{kind}sharedmemory/region/{region}")


@router.get(f"{REGIONS[0]}/status")
@router.get(f"{REGIONS[1]}/status")
async def shared_memory_status(kind: str, region: str | None = None) -> list[Any]:
    return []


@router.post(f"{REGIONS[0]}/unregister")
@router.post(f"{REGIONS[1]}/unregister")
async def unregister_shared_memory(kind: str, region: str | None = None) -> dict[str, Any]:
    return {}


@router.post(f"{REGIONS[1]}/register")
async def register_shared_memory(kind: str, region: str) -> None:
    raise Unsupported(SHARED_MEMORY)


@router.get("/trace/setting")
@router.post("/trace/setting")
@router.get("/models/{name}/trace/setting")
@router.post("/models/{name}/trace/setting")
async def trace_setting(name: str | None = None) -> None:
    raise Unsupported(TRACES)


@router.get("/logging")
@router.post("/logging")
async def log_settings() -> None:
    raise Unsupported(LOGS)
