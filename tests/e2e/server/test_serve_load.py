"""Many streams at once, a third of which is left: who stays gets the answer that it would get alone."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import openai
import pytest

import vlm
from tests.kits.servers.server_kit import EXAMPLES, alone, asked, is_empty, load, serving, until
from vlm.config import RuntimeConfig

TEXTS = [
    "translate English to German: The old ship is small.",
    "translate English to German: 3 May 2019",
    "translate English to German: The meeting is at 4:15 pm.",
    "translate German to English: Das Haus ist neu.",
]
QUESTIONS = ["Read the sign.", "How many objects are there?", "Which shape is pink?"]
SCENES = [EXAMPLES / f"scene{i}.png" for i in (1, 2, 3)]
# not all of llava's outputs fit: some are put back
TIGHT = RuntimeConfig("cpu", max_kv_blocks=64, burst=4, prefix_sharing=False)


@dataclass(frozen=True)
class Ask:
    """One stream: what is asked, as the pipeline and as the server take it."""

    model: str
    alone: dict = field(repr=False)
    messages: list = field(repr=False)
    sampling: dict
    leaves_after: int | None  # chunks


def make(number: int, chance: random.Random) -> Ask:
    sampling = {"temperature": 1.5, "seed": number} if number % 2 else {}
    leaves = chance.randrange(1, 6) if number % 3 == 2 else None
    if chance.random() < 0.5:
        text = chance.choice(TEXTS)
        return Ask("mini-t5", {"text": text}, [{"role": "user", "content": text}], sampling, leaves)
    question, scene = chance.choice(QUESTIONS), chance.choice(SCENES)
    sampling |= {"extra_body": {"ignore_eos": True}, "max_tokens": chance.choice((20, 120))}
    return Ask("mini-llava", {"images": [scene], "prompt": question}, asked(question, scene), sampling, leaves)


def expected(pipelines: dict, ask: Ask) -> str:
    options = {k: v for k, v in ask.sampling.items() if k in ("temperature", "seed")}
    if "max_tokens" in ask.sampling:
        options |= {"max_new_tokens": ask.sampling["max_tokens"], "ignore_eos": True}
    return pipelines[ask.model].generate(**ask.alone, **options).raw_text


async def answer(client: openai.AsyncOpenAI, ask: Ask) -> str | None:
    """None of one that was left."""
    options = {"model": ask.model, "messages": ask.messages, **ask.sampling}
    stream = await client.chat.completions.create(**options, stream=True)
    text, chunks = "", 0
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        chunks += 1
        if chunks == ask.leaves_after:
            await stream.close()
            return None
    return text


async def answers(url: str, asks: list[Ask]) -> list[str | None]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return await asyncio.gather(*(answer(client, ask) for ask in asks))


def check(pipelines: dict, alone: dict, count: int) -> None:
    """Asks `count` times at once, leaves every third, compares with the models by themselves."""
    chance = random.Random(count)
    asks = [make(number, chance) for number in range(count)]
    with serving(pipelines) as served:
        found = asyncio.run(answers(served.url, asks))
        for service in map(served.service, alone):
            until(lambda service=service: service.room.held == 0 and is_empty(service.pipeline))
        shown = served.app.state.metrics.registry.get_sample_value
        assert shown("vlm_preemptions_total", {"model": "mini-llava"}) > 0
    stayed = [(ask, text) for ask, text in zip(asks, found, strict=True) if text is not None]
    assert count * 2 // 3 <= len(stayed) < count
    assert [text for _, text in stayed] == [expected(alone, ask) for ask, _ in stayed]


@pytest.mark.parametrize("count", [18, pytest.param(200, marks=pytest.mark.slow)])
def test_streams_are_not_mixed_and_leave_nothing_behind(count):
    pipelines = load("mini-t5") | {"mini-llava": vlm.load("mini-llava", device="cpu", runtime=TIGHT)}
    check(pipelines, {name: alone(name) for name in pipelines}, count)
