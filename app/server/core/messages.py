"""Conversations and images as OpenAI's clients write them -> a pipeline's input and the files of its images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlm.api.pipeline import Pipeline
from vlm.errors import InputError
from vlm.processing.chat.conversation import Conversation, ImagePart, Message, check_messages
from vlm_app.server.core.data_uris import decode_data_uri
from vlm_app.server.core.setting_names import about_input

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# how clients call a part -> where its text or file stands
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
IMAGES = {"image_url": "image_url", "input_image": "image_url"}


@about_input()
def read_chat(
    pipeline: Pipeline, messages: list[dict[str, Any]], *, continue_final: bool = False, truncate: bool | int = False
) -> tuple[dict[str, Any], list[bytes]]:
    """Reads a conversation; a model without a template for them takes one message of the user as its whole input.

    `continue_final`: the last message, of the assistant, is gone on with; `truncate`: an input that is no conversation
    is cut. Raises InputError with one sentence.
    """
    check_messages(messages, pipeline.capabilities.max_prompt_tokens)
    files: list[bytes] = []
    turns = tuple(_turn(number, message, files) for number, message in enumerate(messages, 1))
    if pipeline.capabilities.supports_chat:
        if truncate:
            said = "conversations are not cut; leave truncate_prompt_tokens out, and messages if need be."
            raise InputError(said, settings=("truncate",))
        return {"messages": Conversation(turns), "continue_final_message": continue_final or None}, files
    family = pipeline.family
    if len(turns) != 1 or turns[0].role != "user":
        raise InputError(f"{family.name} does not converse; send one message, of the user{_system(pipeline, turns)}.")
    text = turns[0].text
    if pipeline.capabilities.takes_prompt:
        return {"prompt": text, **_cut(truncate)}, files
    if pipeline.capabilities.takes_text:
        return {"text": text, **_cut(truncate)}, files
    asked = {"question": text} if text.strip() and pipeline.capabilities.takes_question else {}
    if text.strip() and not asked:
        raise InputError(f"{family.name} reads an image and no question about it; send the image alone.")
    if not files:
        raise InputError(f"{family.name} needs an image; send one as image_url.")
    return asked, files


@about_input()
def verbatim(pipeline: Pipeline, prompt: str | list[int], truncate: bool | int = False) -> dict[str, Any]:
    """Returns a text or token ids as the model reads them: in no template. `truncate`: a text is cut to so many tokens,
    ids to the last ones. Raises InputError for a model of images alone."""
    if isinstance(prompt, list):
        ids = prompt if isinstance(truncate, bool) else prompt[-truncate:]
        return {"input_ids": ids}
    if not (pipeline.capabilities.takes_prompt or pipeline.capabilities.takes_text):
        raise InputError(
            f"{pipeline.family.name} reads images, not texts alone; send one as image_url to /v1/chat/completions."
        )
    return {("raw_prompt" if pipeline.capabilities.takes_prompt else "text"): prompt, **_cut(truncate)}


def _system(pipeline: Pipeline, turns: Sequence[Message]) -> str:
    """Returns where a model that does not converse reads what the system says."""
    reads = pipeline.capabilities.takes_prompt or pipeline.capabilities.takes_text
    is_told = reads and any(turn.role == "system" for turn in turns)
    return ", and the system's words at the beginning of its text" if is_told else ""


def _cut(truncate: bool | int) -> dict[str, bool | int]:
    return {"truncate": truncate} if truncate else {}


def _turn(number: int, message: dict[str, Any], files: list[bytes]) -> Message:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise InputError(f"message {number} is of {_kind('role', role)}; send system, user and assistant messages.")
    if names := [name for name in ("tool_calls", "function_call", "audio") if message.get(name)]:
        raise InputError(f"message {number} has {names[0]}, which is not supported; send its content as text.")
    if content is None and role == "assistant":  # it called a tool, or refused
        content = message.get("refusal") or ""
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list) or not all(isinstance(part, dict | str) for part in content):
        raise InputError(f"message {number} needs a content: a text, or a list of parts.")
    return Message(ROLES[role], tuple(_part(number, part, files) for part in content))


def _part(number: int, part: dict[str, Any] | str, files: list[bytes]) -> str | ImagePart:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part.get("type"), str) else None
    if kind in TEXTS:
        if not isinstance(text := part.get(TEXTS[kind]), str):
            raise InputError(
                f"message {number} has a part of type {kind!r} whose {TEXTS[kind]} is no string; give one."
            )
        return text
    if kind in IMAGES:
        value = part.get(IMAGES[kind])
        files.append(decode_data_uri(value.get("url") if isinstance(value, dict) else value))
    elif kind == "file":
        files.append(decode_data_uri(_file_data(number, part.get("file"))))
    else:
        raise InputError(
            f"message {number} has a part of {_kind('type', part.get('type'))}; allowed are text, image_url and file."
        )
    return ImagePart()


def _kind(noun: str, value: Any) -> str:
    """Returns what a client called a message or part, for a sentence: `role 'tool'`."""
    return f"no {noun}" if value is None else f"{noun} {str(value)[:40]!r}"


def _file_data(number: int, file: Any) -> Any:
    data = file.get("file_data") if isinstance(file, dict) else None
    if data is None:
        raise InputError(f"message {number} has a file without file_data; send it as data:application/pdf;base64,….")
    return data
