"""Conversations and images as OpenAI's clients write them -> a pipeline's input and the files of its images."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from vlm.errors import InputError
from vlm.pipeline import Pipeline
from vlm.processing.prompts import check_conversation, split_text


def read_chat(pipeline: Pipeline, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], list[bytes]]:
    """A model without a template for conversations takes one message of the user as its whole input.

    Raises InputError with one sentence.
    """
    check_conversation(messages, pipeline.frontend.inputs.max_tokens)
    files: list[bytes] = []
    turns = [_turn(number, message, files) for number, message in enumerate(messages, 1)]
    if pipeline.converses:
        return {"messages": turns}, files
    family = pipeline.family
    if len(turns) != 1 or turns[0]["role"] != "user":
        raise InputError(f"{family.name} does not converse; send one message, of the user.")
    text = "".join(part["text"] for part in turns[0]["content"] if part["type"] == "text")
    if family.prompt is not None:
        return {"prompt": text}, files
    if "text" in family.inputs:
        return {"text": text}, files
    if text.strip():
        raise InputError(f"{family.name} reads an image and no question about it; send the image alone.")
    if not files:
        raise InputError(f"{family.name} needs an image; send one as image_url.")
    return {}, files


def verbatim(pipeline: Pipeline, prompt: str | list[int]) -> dict[str, Any]:
    """A text or token ids as the model reads them: in no template."""
    if isinstance(prompt, list):
        has_encoder = pipeline.llm.executor.encoder is not None
        return {"encoder_input_ids" if has_encoder else "decoder_prompt_token_ids": prompt}
    return {("raw_prompt" if pipeline.family.prompt is not None else "text"): prompt}


def decode_data_uri(uri: Any) -> bytes:
    """`data:image/png;base64,…` -> the file. InputError for any other address: nothing is fetched."""
    if not isinstance(uri, str) or not uri.startswith("data:"):
        raise InputError("images are not fetched from addresses; send them as data:image/png;base64,… instead.")
    head, comma, content = uri.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InputError("an image is no base64 data URI; send data:image/png;base64,….")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("an image's base64 is damaged; encode the file's bytes again.") from None


def _turn(number: int, message: dict[str, Any], files: list[bytes]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InputError(f"message {number} needs a content: a text, or a list of parts.")
    role = "system" if message.get("role") == "developer" else message.get("role")
    return {"role": role, "content": [each for part in content for each in _parts(number, part, files)]}


def _parts(number: int, part: dict[str, Any], files: list[bytes]) -> list[dict[str, Any]]:
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return [{"type": "text", "text": text} for text in split_text(part["text"])]
    if kind == "image_url":
        given = part.get("image_url")
        files.append(decode_data_uri(given.get("url") if isinstance(given, dict) else given))
    elif kind == "file":
        given = part.get("file")
        files.append(decode_data_uri(given.get("file_data") if isinstance(given, dict) else None))
    else:
        raise InputError(f"message {number} has a part of type {kind!r}; allowed are text, image_url and file.")
    return [{"type": "image"}]
