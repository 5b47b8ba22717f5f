"""`vlm bench serve`: an open loop of requests to servers of OpenAI's API, to ours or to any other."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from vlm.artifacts.progress import Progress
from vlm.backends.devices import resolve_device
from vlm.errors import InputError
from vlm_app.bench.serving.arrivals import arrival_times
from vlm_app.bench.serving.client import client_of, http_library
from vlm_app.bench.serving.config import DEFAULT_PROMPTS, ServeBenchConfig
from vlm_app.bench.serving.dataset import read_dataset
from vlm_app.bench.serving.load import run_load
from vlm_app.bench.serving.own_server import OwnServer, own_server
from vlm_app.bench.serving.prompts import Prompt, draw_prompt
from vlm_app.bench.serving.statistics import summary
from vlm_app.bench.serving.table import rate_in_words
from vlm_app.bench.serving.target import PATHS, Target, open_target
from vlm_app.bench.systems.environment import environment
from vlm_app.core.listening import reserve_files

Results = dict[str, Any]
WARM_UP = 0  # the number of the run that is not counted


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    config: ServeBenchConfig
    dataset: list[Prompt]  # none: prompts are drawn
    say: Progress

    @property
    def num_prompts(self) -> int:
        return self.config.num_prompts or len(self.dataset) or DEFAULT_PROMPTS

    def prompts(self, target: Target, run: int, count: int) -> list[Prompt]:
        """Returns the prompts of a run, which no other run has unless they are the user's."""
        if self.dataset:
            return [self.dataset[number % len(self.dataset)] for number in range(count)]
        found = []
        for number in range(count):
            self.say(f"Drawing prompts {run or 'of the warm-up'}", number, count)
            found.append(draw_prompt(self.config, target.words_per_token, [self.config.seed, run, number]))
        return found


def serve(config: ServeBenchConfig, serve_options: Sequence[str] = (), progress: Progress | None = None) -> Results:
    """Measures every server at every rate. Raises InputError for one that cannot be measured."""
    _check_options(config, serve_options)
    http_library()
    dataset = read_dataset(config.dataset_path, config) if config.dataset_path else []
    bench = Bench(config, dataset, progress or (lambda *_: None))
    _reserve_files(min(config.max_concurrency or bench.num_prompts, bench.num_prompts))
    targets, rows = _measured(bench, serve_options)
    where = torch.device("cpu") if config.urls else resolve_device(_device(serve_options))
    return {
        "kind": "serve",
        "subject": targets[0]["model"],
        "config": config.to_dict() | {"num_prompts": bench.num_prompts, "serve_options": [*serve_options]},
        "environment": environment(where),  # once a server of ours has ended: it asks the GPU
        "targets": targets,
        "rows": rows,
    }


def _check_options(config: ServeBenchConfig, serve_options: Sequence[str]) -> None:
    """Raises InputError for options of a server that is not started here, and for a key that a result would tell."""
    if config.urls and serve_options:
        raise InputError(f"{serve_options[0]} is for a server that is started here; leave it out, or --url.")
    if any(option.partition("=")[0] == "--api-key" for option in serve_options):
        raise InputError("--api-key stands behind --; give it before, then client and server have it.")


def _reserve_files(requests: int) -> None:
    """Raises InputError for more requests at once than this process may have connections."""
    try:
        reserve_files(requests)
    except InputError:
        raise InputError(
            f"{requests:,} requests may be on their way at once, which is more files than this process may open; give a"
            " lower --max-concurrency, or raise `ulimit -n`."
        ) from None


def _measured(bench: Bench, serve_options: Sequence[str]) -> tuple[list[Results], list[Results]]:
    """Returns what is known of each server, and a row for each of its runs."""
    with ExitStack() as stack:
        own: OwnServer | None = None
        if not bench.config.urls:
            bench.say("Starting vlm serve", 0, 0)
            model, key = str(bench.config.model), bench.config.api_key
            own = stack.enter_context(own_server(model, serve_options, api_key=key))
        return asyncio.run(_measure_all(bench, own))


async def _measure_all(bench: Bench, own: OwnServer | None) -> tuple[list[Results], list[Results]]:
    """Measures one rate after the other; servers take turns at each, so that what else a machine does befalls all."""
    servers = [("vlm serve", own.url)] if own else bench.config.servers
    async with AsyncExitStack() as stack:
        targets = [await _open(bench, stack, name, url, is_own=own is not None) for name, url in servers]
        for target in targets:
            await _warm_up(bench, target)
        numbers = range(1, len(bench.config.request_rates) + 1)
        rows = [await _row(bench, target, number) for number in numbers for target in targets]
    return [_about(target, own) for target in targets], rows


async def _open(bench: Bench, stack: AsyncExitStack, name: str, url: str, *, is_own: bool) -> Target:
    config = bench.config
    bench.say(f"Asking {name}", 0, 0)
    base = url.rstrip("/").removesuffix("/v1")
    connect = client_of(base, PATHS[config.endpoint], api_key=config.api_key, timeout=config.timeout)
    model = None if is_own else config.model  # ours may have been started as NAME=MODEL
    return await open_target(name, await stack.enter_async_context(connect), config, model=model, dataset=bench.dataset)


async def _warm_up(bench: Bench, target: Target) -> None:
    prompts = bench.prompts(target, WARM_UP, bench.config.num_warmups)
    await asyncio.gather(*(target.client.send(target.body(prompt)) for prompt in prompts))


async def _row(bench: Bench, target: Target, number: int) -> Results:
    """Measures a server at one rate."""
    config, rate = bench.config, bench.config.request_rates[number - 1]
    count, shown_rate = bench.num_prompts, rate if math.isfinite(rate) else "inf"
    bodies = [target.body(prompt) for prompt in bench.prompts(target, number, count)]
    times = arrival_times(count, rate, burstiness=config.burstiness, seed=config.seed)
    said = f"Asking {target.name}, {rate_in_words(shown_rate)}"
    bench.say(said, 0, count)
    run = await run_load(
        target.client.send, bodies, times, max_concurrency=config.max_concurrency,
        progress=lambda done: bench.say(said, done, count),
    )  # fmt: skip
    return {"target": target.name, "request_rate": shown_rate} | summary(run, config.service_levels)


def _about(target: Target, own: OwnServer | None) -> Results:
    """Returns what a result says of a server."""
    assert target.first is not None
    takes = {"full_length": target.full_length, "usage": target.first.completion_tokens is not None}
    about = {"name": target.name, "model": target.model, "takes": takes, "words_per_token": target.words_per_token}
    about["first_request_ttft_ms"] = target.first.ttft * 1e3
    if own is not None:
        first = target.first.chunks[0] - own.began
        about["cold_start"] = {"ready_seconds": own.ready_seconds, "first_token_seconds": first}
    return about


def _device(serve_options: Sequence[str]) -> str:
    """Returns the device that `vlm serve` was told to use."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--device", default="auto")
    return parser.parse_known_args(serve_options)[0].device
