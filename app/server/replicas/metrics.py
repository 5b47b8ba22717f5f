"""The metrics of all replicas as one page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from vlm_app.server.replicas.forwarding import Forwarding
from vlm_app.server.replicas.replica import FAILURES, Replica
from vlm_app.server.replicas.router import Router
from vlm_app.server.replicas.supervisor import Supervisor

LABEL = "replica"


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
        _, body = await replica.get("/metrics")
    except FAILURES:
        return ""
    return body.decode()


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]):
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
