"""What OpenAI's client gets of a server beyond its plain calls: one JSON object. Run by any Python that has openai."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from client_kit import KEY, data_uri, image_part
from pydantic import BaseModel

base_url, image, page, text = sys.argv[1:]
given: dict[str, Any] = {"base_url": base_url, "api_key": KEY, "max_retries": 0}
client = openai.OpenAI(**given)
sight = [{"role": "user", "content": [image_part(data_uri(image)),
                                      {"type": "text", "text": "Read the sign."}]}]  # fmt: skip
ask: dict[str, Any] = {"model": "mini-t5", "messages": [{"role": "user", "content": text}]}


class Sign(BaseModel):
    text: str


def helped() -> list[str]:
    """The stream helper's events, and what it makes of them."""
    with client.chat.completions.stream(model="mini-llava", messages=sight) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        return ["".join(pieces), stream.get_final_completion().choices[0].message.content]


async def asynchronous() -> list[str]:
    async with openai.AsyncOpenAI(**given) as other:
        answers = await asyncio.gather(*(other.chat.completions.create(**ask) for _ in range(4)))
        stream = await other.chat.completions.create(**ask, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return [*(each.choices[0].message.content for each in answers), "".join(pieces)]


def raw() -> list[Any]:
    answer = client.chat.completions.with_raw_response.create(**ask)
    return [answer.status_code, len(answer.headers["x-request-id"]), answer.parse().choices[0].message.content]


def status_error_of(call: Any) -> list[Any]:
    try:
        return ["no error", str(call())]
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param, error.body["message"]]


def keyed(header: str) -> Any:
    other = openai.OpenAI(**given, default_headers={"Authorization": header})
    return status_error_of(lambda: other.models.list().data[0].id)


file = {"type": "file", "file": {"filename": "page.png", "file_data": data_uri(page)}}
print(json.dumps({
    "version": openai.__version__,
    "image": client.chat.completions.create(model="mini-llava", messages=sight).choices[0].message.content,
    "stream helper": helped(),
    "async": asyncio.run(asynchronous()),
    "raw": raw(),
    "file": client.chat.completions.create(model="mini-nougat", messages=[{"role": "user", "content": [file]}],
                                           ).choices[0].message.content,
    "embedding": len(client.embeddings.create(model="mini-t5", input=text).data[0].embedding),
    "models": [model.id for model in client.models.list()],
    "bearer": keyed("bearer SECRET"), "BEARER": keyed("BEARER SECRET"), "wrong": keyed("Bearer secret"),
    "parse": status_error_of(lambda: client.chat.completions.parse(**ask, response_format=Sign)),
    "responses": status_error_of(lambda: client.responses.create(model="mini-t5", input=text)),
    "speech": status_error_of(lambda: client.audio.speech.create(model="mini-t5", voice="alloy", input=text)),
    "images": status_error_of(lambda: client.images.generate(model="mini-t5", prompt=text)),
    "moderation": status_error_of(lambda: client.moderations.create(input=text)),
    "transcriptions": status_error_of(lambda: client.audio.transcriptions.create(model="a", file=("a.wav", b"a"))),
    "uploads": status_error_of(lambda: client.files.create(file=("a.jsonl", b"{}"), purpose="batch")),
    "files": status_error_of(lambda: client.files.list()),
    "no model": status_error_of(lambda: client.models.retrieve("gpt-4o")),
    "too hot": status_error_of(lambda: client.chat.completions.create(**ask, temperature=3)),
}))  # fmt: skip
