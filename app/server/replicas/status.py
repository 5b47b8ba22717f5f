"""How the replicas are, and what they count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vlm_app.server.replicas.forwarding import Forwarding
from vlm_app.server.replicas.replica import FAILURES, Replica
from vlm_app.server.replicas.router import Router
from vlm_app.server.replicas.supervisor import Supervisor

LABEL = "replica"
STATUS_SECONDS = 5  # for a replica to say how it is and what it counts; one that does not is not well


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
        bodies = await asyncio.gather(*(replica.health(STATUS_SECONDS) for replica in self._replicas))
        return dict(zip(self._replicas, bodies, strict=True))

    def _row(self, replica: Replica, body: bytes | None) -> dict[str, object]:
        trouble = "its own /health does not say that it is well" if replica.is_ready else replica.trouble
        state = {"reason": trouble} if body is None else {"health": json.loads(body)}
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


class Metrics:
    """All metrics of the replicas, each with the label `replica`, and the front's own."""

    def __init__(self, supervisor: Supervisor, router: Router, forwarding: Forwarding):
        self._supervisor, self._router, self._forwarding = supervisor, router, forwarding

    async def page(self, http: Request) -> Response:
        replicas = self._supervisor.ready
        texts = await asyncio.gather(*(_text(replica) for replica in replicas.values()))
        registry = CollectorRegistry()
        registry.register(_Families(merged(dict(zip(replicas, texts, strict=True)))))
        registry.register(_Families(list(self.own())))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    def own(self) -> Iterator[Metric]:
        """Yields what the front itself counts."""
        ready = GaugeMetricFamily("vlm_replica_ready", "1 while it can be asked.", labels=(LABEL,))
        outstanding = GaugeMetricFamily("vlm_replica_outstanding_requests", "Requests under way.", labels=(LABEL,))
        restarts = CounterMetricFamily("vlm_replica_restarts", "Times it was started again.", labels=(LABEL,))
        for replica in self._supervisor.replicas:
            ready.add_metric((replica.name,), replica.is_ready)
            outstanding.add_metric((replica.name,), self._router.outstanding[replica.name])
            restarts.add_metric((replica.name,), replica.restarts)
        text = "Requests that went to a second replica, for the first had gone or was full."
        yield from (ready, outstanding, restarts)
        yield CounterMetricFamily("vlm_retried_requests", text, self._forwarding.retried)


def merged(texts: Mapping[str, str]) -> list[Metric]:
    """Returns what replicas show, by their names, as families of metrics whose samples have their names as a label."""
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            own = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            own.samples += [sample._replace(labels=sample.labels | {LABEL: replica}) for sample in family.samples]
    return list(families.values())


async def _text(replica: Replica) -> str:
    """Returns a replica's metrics; nothing of one that has gone."""
    try:
        _, body = await replica.get("/metrics", STATUS_SECONDS)
    except FAILURES:
        return ""
    return body.decode()


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]):
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
