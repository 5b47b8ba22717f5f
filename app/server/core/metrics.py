"""What /metrics shows (Prometheus): a registry a server, a label a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from vlm.engine.llm_engine import EngineUsage
from vlm.processing.media.pool import MediaPool
from vlm.requests.token_update import Completion, TokenUpdate

Usages = Callable[[], dict[str, EngineUsage | None]]  # of each model; None of an encoder alone
FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKEN = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class Metrics:
    """The instruments of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        options = {"labelnames": ("model",), "registry": registry}
        self.first_token = Histogram(
            "vlm_time_to_first_token_seconds", "From a request's arrival.", buckets=FIRST_TOKEN, **options
        )
        self.token = Histogram("vlm_inter_token_seconds", "Between tokens of an output.", buckets=TOKEN, **options)
        self.prompt_tokens = Counter("vlm_prompt_tokens", "Tokens and image rows read.", **options)
        self.tokens = Counter("vlm_generated_tokens", "Tokens generated; their rate is tokens a second.", **options)
        self.drafted = Counter("vlm_drafted_tokens", "Tokens that prompt lookup proposed.", **options)
        self.accepted = Counter("vlm_accepted_tokens", "Those of them that were right.", **options)
        self.preemptions = Counter("vlm_preemptions", "Outputs put back because the KV cache was full.", **options)
        self.loop_stops = Counter("vlm_loop_stops", "Outputs ended because they repeated themselves.", **options)
        self.rejections = Counter("vlm_rejected_requests", "Requests refused with 429.", **options)
        self.outputs = Counter("vlm_outputs", "Outputs ended.", ("model", "reason"), registry=registry)

    def ended(self, model: str, completion: Completion) -> None:
        """Counts a request that has ended, an aborted one too."""
        self.outputs.labels(model, completion.finish_reason).inc()
        self.preemptions.labels(model).inc(completion.preemptions)
        self.drafted.labels(model).inc(completion.num_drafted)
        self.accepted.labels(model).inc(completion.num_accepted)
        self.loop_stops.labels(model).inc(completion.finish_reason == "loop")
        self.tokens.labels(model).inc(len(completion.token_ids))
        self.prompt_tokens.labels(model).inc(completion.prompt_tokens)

    def register(self, usages: Usages) -> None:
        """Shows how full these are whenever it is asked."""
        self.registry.register(_Occupancy(usages))

    def watch_workers(self, pool: MediaPool) -> None:
        """Shows what the processes that read images do."""
        self.registry.register(_Workers(pool))


class Stopwatch:
    """Times one request's outputs, beginning now."""

    def __init__(self, metrics: Metrics, model: str):
        self._first, self._next = metrics.first_token.labels(model), metrics.token.labels(model)
        self._began, self._last = time.perf_counter(), {}

    def observe(self, index: int, update: TokenUpdate) -> None:
        """Takes what a step brought for an output."""
        if not update.token_ids:
            return
        at, count = update.time, len(update.token_ids)
        last = self._last.get(index)
        if last is None:
            self._first.observe(at - self._began)
        else:
            for _ in range(count):
                self._next.observe((at - last) / count)
        self._last[index] = at


class _Occupancy(Collector):
    def __init__(self, usages: Usages):
        self._usages = usages

    def collect(self) -> Iterator[GaugeMetricFamily]:
        usages = {name: usage for name, usage in self._usages().items() if usage is not None}
        running = ((name, usage.running) for name, usage in usages.items())
        yield _gauge("vlm_running_outputs", "Outputs being decoded.", ("model",), running)
        waiting = ((name, usage.waiting) for name, usage in usages.items())
        yield _gauge("vlm_waiting_outputs", "Outputs in the queue.", ("model",), waiting)
        ratios = ((name, kind, part) for name, usage in usages.items() for kind, part in usage.cache.items())
        yield _gauge("vlm_kv_cache_used_ratio", "Part of the KV cache in use.", ("model", "attention"), ratios)


class _Workers(Collector):
    def __init__(self, pool: MediaPool):
        self._pool = pool

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        state = self._pool.state()
        yield GaugeMetricFamily("vlm_media_workers_busy", "Processes that read images now.", state.busy)
        text = "Processes that read images and have ended, for what: timeout, memory, crash, stopped, start."
        restarts = CounterMetricFamily("vlm_media_worker_restarts", text, labels=("reason",))
        for reason, count in self._pool.failures.items():
            restarts.add_metric((reason,), count)
        yield restarts


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for *values, value in rows:
        gauge.add_metric(values, value)
    return gauge
