"""A server under load: which model it has, which fields it takes, how many words make a token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vlm.errors import InputError, listed
from vlm_app.bench.serving.client import Client, body_of, failure_of, message_of
from vlm_app.bench.serving.config import ServeBenchConfig
from vlm_app.bench.serving.outcome import Outcome
from vlm_app.bench.serving.prompts import Prompt, draw_prompt, draw_words

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
MAX_ANSWER_BYTES = 2**24
FEW_WORDS, MORE_WORDS = 16, 64  # of the two prompts whose tokens are compared
WORDS_PER_TOKEN = 0.75  # of English, where a server counts no tokens
USAGE = {"stream_options": {"include_usage": True}}
UNKNOWN_FIELD = (400, 422)  # what servers answer to one


@dataclass
class Target:
    """One server, as requests of the load are made for it."""

    name: str
    client: Client
    config: ServeBenchConfig
    model: str
    counts: bool = True  # does it take stream_options, and count tokens?
    full_length: str | None = None  # the field that asks for answers of the full length, of those that it takes
    words_per_token: float = WORDS_PER_TOKEN
    first: Outcome | None = None  # of the first request of all

    def body(self, prompt: Prompt) -> bytes:
        """Returns a request as it is sent."""
        fields = {"model": self.model, "max_tokens": prompt.output_len, "temperature": 0, "stream": True}
        fields |= USAGE if self.counts else {}
        if self.full_length is not None:
            fields[self.full_length] = prompt.output_len if self.full_length == "min_tokens" else True
        return json.dumps(fields | prompt.content(self.config.endpoint) | (self.config.extra_body or {})).encode()

    async def ask(self, prompt: Prompt) -> Outcome:
        """Returns the outcome of a request. Raises InputError where it failed."""
        outcome = await self.client.send(self.body(prompt))
        self.check(outcome)
        return outcome

    def check(self, outcome: Outcome) -> None:
        """Raises InputError where a request failed before the load."""
        if outcome.failure is not None:
            hint = "; give --api-key" if outcome.status in (401, 403) else ""
            raise InputError(
                f"{self.name} fails a request before the load: {outcome.failure}, {outcome.message.rstrip('.')}{hint}."
            )


async def open_target(
    name: str, client: Client, config: ServeBenchConfig, *, model: str | None, dataset: Sequence[Prompt]
) -> Target:
    """Asks a server what it has and takes, and once for the longest answer; `model`: None is the only one that it has.
    Raises InputError for what it refuses."""
    target = Target(name, client, config, await _model(name, client, model))
    if dataset:
        await _settle_fields(target, dataset[0])
        return target
    first = replace(draw_prompt(config, WORDS_PER_TOKEN, [config.seed, 0]), text=_words(config, FEW_WORDS))
    await _settle_fields(target, first)
    await _settle_words(target, first)
    most = round(config.drawn("input_len")[1] * target.words_per_token)
    await target.ask(replace(first, text=_words(config, most), output_len=config.output_len[1]))
    return target


async def _model(name: str, client: Client, wanted: str | None) -> str:
    """Returns the model to ask for. Raises InputError where the server has it not, or is none of this kind."""
    listing = await _listing(name, client)
    if listing is None and wanted is not None:
        return wanted  # a gateway that does not tell
    if listing is None:
        raise InputError(f"{name} does not list its models at /v1/models; give --model NAME, or another --url.")
    models = [str(entry.get("id")) for entry in listing]
    bases = [str(entry.get("id")) for entry in listing if entry.get("parent") is None]
    if wanted is None and len(bases) == 1:
        return bases[0]
    if wanted in models:
        return str(wanted)
    begin = "does not serve one model alone" if wanted is None else f"has no model {wanted!r}"
    raise InputError(f"{name} {begin}; give --model, one of: {listed(models)}.")


async def _listing(name: str, client: Client) -> list[dict[str, Any]] | None:
    """Returns the models of a server; None where it has no such list. Raises InputError where it cannot be asked."""
    alone = {"Connection": "close"}  # some servers drop a connection after an error, which a request would meet
    try:
        async with client.session.get(f"{client.url}/v1/models", headers=alone, allow_redirects=False) as answer:
            status, body = answer.status, await body_of(answer, MAX_ANSWER_BYTES)
    except Exception as error:
        kind, reason = failure_of(error)
        raise InputError(f"{name} gives no answer: {kind}, {reason}; start it, or give another --url.") from None
    if status in (401, 403):
        raise InputError(f"{name} refuses the API key ({message_of(body)[:200].rstrip('.')}); give another --api-key.")
    try:
        data = json.loads(body)["data"] if status == 200 else None
    except (ValueError, KeyError, TypeError):
        return None
    return data if isinstance(data, list) and all(isinstance(entry, dict) for entry in data) else None


async def _settle_fields(target: Target, prompt: Prompt) -> None:
    """Finds the fields beyond OpenAI's own that the server takes, with the first request of all. Raises InputError."""
    full_length = ("ignore_eos", "min_tokens", None) if target.config.ignore_eos else (None,)
    for target.counts, target.full_length in itertools.product((True, False), full_length):
        target.first = outcome = await target.client.send(target.body(prompt))
        if outcome.status not in UNKNOWN_FIELD:
            break
    target.check(outcome)


async def _settle_words(target: Target, first: Prompt) -> None:
    """Compares the tokens of two prompts; the rest of both, a chat's template and the images, is the same."""
    longer = replace(first, text=f"{first.text} {_words(target.config, MORE_WORDS)}")
    fewer, more = target.first, await target.ask(longer)
    if fewer and fewer.prompt_tokens and more.prompt_tokens and more.prompt_tokens > fewer.prompt_tokens:
        target.words_per_token = MORE_WORDS / (more.prompt_tokens - fewer.prompt_tokens)


def _words(config: ServeBenchConfig, count: int) -> str:
    return draw_words(np.random.default_rng([config.seed, count]), count)
