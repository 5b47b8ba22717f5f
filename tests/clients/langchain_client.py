"""What langchain-openai's classes get of a server: one JSON object. Run by a Python that has langchain-openai alone."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from client_kit import KEY, data_uri, error_of, image_part
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

base_url, image, page, text = sys.argv[1:]
image, page = data_uri(image), data_uri(page)
given: dict[str, Any] = {"base_url": base_url, "api_key": KEY, "max_retries": 0}
chat = ChatOpenAI(model="mini-llava", **given)
translator = ChatOpenAI(model="mini-t5", **given)
see = [image_part(image), {"type": "text", "text": "Read the sign."}]
kind, data = image.removeprefix("data:").split(";base64,")
block = [{"type": "image", "base64": data, "mime_type": kind}, {"type": "text", "text": "Read the sign."}]


async def asynchronous() -> list[str]:
    answer = await translator.ainvoke(text)
    pieces = [piece.content async for piece in translator.astream(text)]
    both = await translator.abatch([text, text])
    return [answer.content, "".join(pieces), *(each.content for each in both)]


def conversation() -> str:
    turns = [SystemMessage("You see."), HumanMessage(see), AIMessage("a sign"), HumanMessage("Read the sign.")]
    return chat.invoke(turns, max_tokens=8).content


def streamed() -> dict[str, Any]:
    whole = None
    for piece in chat.stream([HumanMessage(see)], stream_usage=True):
        whole = piece if whole is None else whole + piece
    return {"text": whole.content, "usage": whole.usage_metadata, "finish": whole.response_metadata["finish_reason"]}


answer = chat.bind(logprobs=True, top_logprobs=2).invoke([HumanMessage(see)])
embeddings = OpenAIEmbeddings(model="mini-t5", check_embedding_ctx_length=False, **given)
shortened = OpenAIEmbeddings(model="mini-t5", check_embedding_ctx_length=False, dimensions=5, **given)
schema = {"title": "a", "type": "object", "properties": {}}
template = ChatPromptTemplate.from_messages([("user", "translate English to German: {text}")])
print(json.dumps({
    "image": answer.content,
    "block": chat.invoke([HumanMessage(block)]).content,
    "usage": answer.usage_metadata,
    "metadata": {k: v for k, v in answer.response_metadata.items() if k not in ("logprobs", "token_usage")},
    "logprobs": [row["token"] for row in answer.response_metadata["logprobs"]["content"]],
    "stream": streamed(),
    "conversation": conversation(),
    "invoke": translator.invoke(text).content,
    "async": asyncio.run(asynchronous()),
    "batch": [each.content for each in translator.batch([text] * 3)],
    "chain": (template | translator).invoke({"text": text.partition(": ")[2]}).content,
    "stop": translator.bind(stop=["Schiff"]).invoke(text).content,
    "options": ChatOpenAI(
        model="mini-t5", temperature=0, max_tokens=3, seed=1, n=1, top_p=0.5, frequency_penalty=0.0, logit_bias={5: -1},
        model_kwargs={"user": "me"}, extra_body={"top_k": -1, "repetition_penalty": 1.0}, **given,
    ).invoke(text).content,
    "completion": OpenAI(model="mini-t5", temperature=0, **given).invoke(text),
    "completions": OpenAI(model="mini-t5", temperature=0, **given).batch([text, text]),
    "streamed completion": "".join(OpenAI(model="mini-t5", temperature=0, **given).stream(text)),
    "embeddings": [len(row) for row in embeddings.embed_documents([f"{text} {i}" for i in range(100)])],
    "query": embeddings.embed_query(text)[:3],
    "dimensions": len(shortened.embed_query(text)),
    "page": ChatOpenAI(model="mini-nougat", **given).invoke([HumanMessage([image_part(page)])]).content,
    "tools": error_of(lambda: chat.bind_tools([{"type": "function", "function": {"name": "f"}}]).invoke("a")),
    "structure": error_of(lambda: chat.with_structured_output(schema).invoke("a")),
    "too long": error_of(lambda: chat.invoke("a", max_tokens=10**6)),
    "key": error_of(lambda: ChatOpenAI(model="mini-t5", **{**given, "api_key": "no"}).invoke("a")),
    "model": error_of(lambda: ChatOpenAI(model="gpt-4o", **given).invoke("a")),
}))  # fmt: skip
