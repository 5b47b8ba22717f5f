"""Prompts of a user's own: a line of JSON each."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Any

from vlm.errors import InputError
from vlm_app.bench.lists import json_object
from vlm_app.bench.serving.config import ServeBenchConfig
from vlm_app.bench.serving.prompts import Prompt

FIELDS = ("prompt", "messages", "images", "output_tokens")
EXAMPLE = '{"prompt": "What is this?", "images": ["a.png"], "output_tokens": 64}'


def read_dataset(path: Path, config: ServeBenchConfig) -> list[Prompt]:
    """Reads a file's prompts; images are files beside it, or URLs. Raises InputError that names the line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise InputError(f"--dataset-path {path} cannot be read: {reason}; give a .jsonl file.") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InputError(f"--dataset-path {path} is empty; give lines such as {EXAMPLE}.")
    return [_prompt(path, number, line, config) for number, line in numbered]


def _prompt(path: Path, number: int, line: str, config: ServeBenchConfig) -> Prompt:
    where = f"line {number} of {path}"
    values = json_object(line, where)
    if unknown := [name for name in values if name not in FIELDS]:
        raise InputError(f"{where} holds {unknown[0]!r}; its fields are {', '.join(FIELDS)}.")
    text, messages, images = values.get("prompt"), values.get("messages"), values.get("images") or []
    has_text = isinstance(text, str) and bool(text)
    if has_text == bool(messages) or not isinstance(messages or [], list):
        raise InputError(f"{where} needs either a text as prompt or a list of messages, such as {EXAMPLE}.")
    if config.endpoint == "completions" and (messages or images):
        raise InputError(f"{where} holds messages or images, which go in chats; leave --endpoint completions out.")
    if (messages and images) or not _are_texts(images):
        raise InputError(f"{where} needs images as a list of file names, and none beside messages.")
    output_len = values.get("output_tokens", config.output_len[1])
    if not isinstance(output_len, int) or isinstance(output_len, bool) or output_len < 1:
        raise InputError(f"{where} has output_tokens {output_len!r}; it must be a whole number of at least 1.")
    return Prompt(output_len, text or "", tuple(_image(path, where, image) for image in images), messages or [])


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _image(path: Path, where: str, image: str) -> str:
    """Returns an image's URL: itself, or a data: URL of a file."""
    if image.startswith(("data:", "http://", "https://")):
        return image
    kind = mimetypes.guess_type(image)[0] or "application/octet-stream"
    try:
        return f"data:{kind};base64,{base64.b64encode((path.parent / image).read_bytes()).decode()}"
    except OSError as error:
        raise InputError(f"{where}: the image {image} cannot be read: {error.strerror}.") from None
