"""How the replicas are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse

from vlm_app.server.replicas.replica import Replica
from vlm_app.server.replicas.router import Router


class Health:
    """Says which replicas can be asked: all is well while one can."""

    def __init__(self, replicas: Sequence[Replica], router: Router):
        self._replicas, self._router = replicas, router

    async def health(self, http: Request) -> JSONResponse:
        bodies = await self._bodies()
        rows = [self._row(replica, body) for replica, body in bodies.items()]
        is_broken = not any(row["ready"] for row in rows)
        status = {"status": "broken" if is_broken else "ok", "broken": _broken(bodies), "replicas": rows}
        return JSONResponse(status, 503 if is_broken else 200)

    async def ready(self, http: Request) -> JSONResponse:
        bodies = await self._bodies()
        is_ready = any(bodies.values())
        status = {"live": True, "ready": is_ready, "broken": _broken(bodies)}
        return JSONResponse(status, 200 if is_ready else 503)

    async def live(self, http: Request) -> JSONResponse:
        return JSONResponse({"live": True})

    async def _bodies(self) -> dict[Replica, bytes | None]:
        """Returns what each replica's /health says; None: it is not well."""
        bodies = await asyncio.gather(*(replica.health() for replica in self._replicas))
        return dict(zip(self._replicas, bodies, strict=True))

    def _row(self, replica: Replica, body: bytes | None) -> dict[str, object]:
        state = {"reason": replica.trouble} if body is None else {"health": json.loads(body)}
        return {
            "replica": replica.name,
            "devices": list(replica.job.placement.devices),
            "pid": replica.pid,
            "ready": body is not None,
            "outstanding": self._router.outstanding[replica.name],
            "restarts": replica.restarts,
            **state,
        }


def _broken(bodies: dict[Replica, bytes | None]) -> list[str]:
    return [replica.name for replica, body in bodies.items() if body is None]
