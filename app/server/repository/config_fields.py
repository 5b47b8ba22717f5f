"""Triton's own fields of a config.pbtxt: which are honoured, which change nothing here, which are refused by name.

https://github.com/triton-inference-server/common: protobuf/model_config.proto
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vlm_app.server.repository.fastertransformer import BACKEND

BACKENDS = ("", "vlm", "python", BACKEND)  # "python": what vlm export-triton writes
# what an answer does not depend on, and so is told of and left alone
UNAPPLIED = {
    "model_warmup": "its requests are not sent; --warm-up compiles and captures before the server listens",
    "response_cache": "no response is kept; equal beginnings of prompts and images are computed once anyway",
    "optimization": "the engine is used as it was built",
    "model_operations": "no library is loaded",
    "model_repository_agents": "no agent is run",
    "cc_model_filenames": "one engine serves every GPU that it was built for",
    "batch_output": "outputs are as each request has them",
    "metric_tags": "/metrics has the model's name alone",
    "model_metrics": "/metrics has its own histograms",
    "runtime": "the server is the runtime",
}
QUEUES = ("priority_levels", "default_priority_level", "default_queue_policy", "priority_queue_policy")
GROUP_FIELDS = ("rate_limiter", "secondary_devices", "profile", "passive", "host_policy")


def errors(config: Any) -> list[str]:
    """Returns what a ModelConfig asks for and cannot be had."""
    reasons = []
    if config.backend not in BACKENDS:
        reasons.append(
            f"backend is {config.backend!r}; it must be {BACKEND}, python (of vlm export-triton) or left out"
        )
    if config.platform not in ("", "ensemble"):
        reasons.append(f"platform is {config.platform!r}; it must be ensemble or left out")
    if config.HasField("sequence_batching"):
        reasons.append(
            "sequence_batching is set; no state is kept between requests: send all of a conversation in each"
        )
    return reasons


def notes(config: Any) -> list[str]:
    """Returns what it asks for that is not applied, for whoever starts the server."""
    present = {field.name for field, _ in config.ListFields()}
    lines = [f"{name} is not applied: {why}" for name, why in UNAPPLIED.items() if name in present]
    queues = {field.name for field, _ in config.dynamic_batching.ListFields()}
    lines += [
        f"dynamic_batching.{name} is not applied: requests wait in one queue" for name in QUEUES if name in queues
    ]
    policy = config.version_policy
    if policy.HasField("all") or policy.latest.num_versions > 1 or len(policy.specific.versions) > 1:
        lines.append("version_policy asks for several versions: the latest of them is served")
    if sum(group.count or 1 for group in config.instance_group) > 1:
        lines.append("instance_group asks for several instances: one is loaded, which decodes max_batch_size sequences"
                     " at once")  # fmt: skip
    if any(len(group.gpus) > 1 for group in config.instance_group):
        lines.append("instance_group names several gpus: the first is used; start a server for each of the others")
    group_fields = {field.name for group in config.instance_group for field, _ in group.ListFields()}
    return [*lines, *(f"instance_group.{name} is not applied" for name in GROUP_FIELDS if name in group_fields)]


def device(config: Any) -> str | None:
    """Returns the device of the instances: cuda, cuda:N or cpu; None: not said. FasterTransformer's KIND_CPU, which it
    demands, stands for its GPUs."""
    kinds = {group.kind for group in config.instance_group}
    if len(kinds) != 1:
        return None
    [kind] = kinds
    if config.backend == BACKEND and kind == config.instance_group[0].KIND_CPU:
        return None
    return next(_devices(config, kind), None)


def _devices(config: Any, kind: int) -> Iterator[str]:
    group = config.instance_group[0]
    if kind == group.KIND_CPU:
        yield "cpu"
    if kind == group.KIND_GPU:
        yield f"cuda:{group.gpus[0]}" if group.gpus else "cuda"
