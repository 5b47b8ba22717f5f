"""What litellm gets of a server: one JSON object. Run by a Python that has litellm alone."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm
from client_kit import KEY, data_uri, error_of, image_part

base_url, image, page, text = sys.argv[1:]
image, page = data_uri(image), data_uri(page)
litellm.suppress_debug_info = True
given: dict[str, Any] = {"api_base": base_url, "api_key": KEY, "num_retries": 0, "max_retries": 0}
see = [image_part(image), {"type": "text", "text": "Read the sign."}]
messages, sight = [{"role": "user", "content": text}], [{"role": "user", "content": see}]


def complete(model: str = "openai/mini-t5", messages: list = messages, **more: Any) -> Any:
    return litellm.completion(model=model, messages=messages, **{**given, **more})


def text_of(answer: Any) -> str:
    return answer.choices[0].message.content


async def asynchronous() -> list[str]:
    answer = await litellm.acompletion(model="openai/mini-t5", messages=messages, **given)
    stream = await litellm.acompletion(model="openai/mini-t5", messages=messages, stream=True, **given)
    return [text_of(answer), "".join([chunk.choices[0].delta.content or "" async for chunk in stream])]


answer = complete("openai/mini-llava", sight)
chunks = list(complete("openai/mini-llava", sight, stream=True, stream_options={"include_usage": True}))
texts = litellm.text_completion(model="text-completion-openai/mini-t5", prompt=text, **given)
vectors = litellm.embedding(model="openai/mini-t5", input=[text, "a"], **given)
print(json.dumps({
    "image": text_of(answer),
    "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
    "finish": answer.choices[0].finish_reason,
    "stream": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
    "stream usage": [c.usage.completion_tokens for c in chunks if getattr(c, "usage", None)],
    "rebuilt": text_of(litellm.stream_chunk_builder(chunks, messages=sight)),
    "text": text_of(complete()),
    "async": asyncio.run(asynchronous()),
    "hosted vllm": text_of(complete("hosted_vllm/mini-t5")),
    "options": text_of(complete(temperature=0, max_tokens=3, stop=["Schiff"], seed=1, top_p=0.5, user="me",
                                logit_bias={"5": -1}, top_k=3, repetition_penalty=1.0, tool_choice="auto")),
    "dropped": text_of(complete(drop_params=True, reasoning_effort="low", max_tokens=3)),
    "completion": texts.choices[0].text,
    "embeddings": [len(row["embedding"]) for row in vectors.data],
    "dimensions": len(litellm.embedding(model="openai/mini-t5", input=["a"], dimensions=5,
                                        allowed_openai_params=["dimensions"], **given).data[0]["embedding"]),
    "page": text_of(complete("openai/mini-nougat", [{"role": "user", "content": [image_part(page)]}])),
    "too long": error_of(lambda: complete(max_tokens=10**6)),
    "key": error_of(lambda: complete(api_key="no")),
    "model": error_of(lambda: complete("openai/gpt-nothing")),
    "bad": error_of(lambda: complete(temperature=9)),
}))  # fmt: skip
