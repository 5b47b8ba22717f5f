"""A line of JSON that asks a model in words: a prompt or a conversation, with images or without."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError, listed
from vlm_app.text.json_lines import line_object
from vlm_app.text.sources import Item, beside, beside_words, checked

if TYPE_CHECKING:
    from vlm.processing.chat.conversation import Conversation

WORDS = ("prompt", "text", "messages")
IMAGES = ("images", "image")
WHAT = 'JSON object with "prompt", "text" or "messages"'
QUESTION = "question"  # of an image; a model that has no tasks is asked it as a prompt


def prompt_of(item: Item, raw: bool = False) -> Item:
    """Reads {"prompt" or "text": …} or {"messages": [{"role", "content"}, …]}, each with "images": [path, …], "image":
    path or without, or {"question": …} -> the item that it asks for, of messages a Conversation. `raw`: prompts are
    taken as they are, so a conversation is an error."""
    if item.error or not item.text.strip():
        return item
    try:
        fields = _fields(item)
        others = beside_words(fields) | {name: fields[name] for name in (QUESTION,) if name in fields}
        if images := next((fields[name] for name in IMAGES if fields.get(name)), None):
            others["images"] = [beside(item.source, path) for path in _images(images)]
        if "messages" not in fields:
            return Item(item.source, item.line, _text(fields), fields=others)
        if raw:
            raise InputError("it is a conversation, which needs the template that --raw-prompt leaves out")
        conversation = _conversation(fields["messages"]).with_sources(partial(beside, item.source))
        return Item(item.source, item.line, conversation.messages[-1].text, fields=others | {"messages": conversation})
    except InputError as error:
        return Item(item.source, item.line, error=str(error))


def _fields(item: Item) -> dict[str, Any]:
    fields = line_object(item.text, WHAT)
    if not any(name in fields for name in (*WORDS, *IMAGES, QUESTION)):
        raise InputError(f"it is no {WHAT}")
    for alike in (WORDS, IMAGES):
        if len(names := [name for name in alike if name in fields]) > 1:
            raise InputError(f"it has {listed(names)}; give one of them")
    if error := checked(Item("", None, json.dumps(fields, ensure_ascii=False))).error:
        raise InputError(error)
    return fields


def _text(fields: dict[str, Any]) -> str:
    text = next((fields[name] for name in WORDS if name in fields), "")
    if not isinstance(text, str):
        raise InputError(f"its {'prompt' if 'prompt' in fields else 'text'} is no string")
    return text


def _conversation(messages: Any) -> Conversation:
    """Reads messages; how much of them a model takes is told when it is asked."""
    from vlm.processing.chat.conversation import Conversation

    conversation = Conversation.from_messages(_list(messages, "messages"))
    _images(conversation.images)
    return conversation


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"its {name} are no list")
    return value


def _images(value: Any) -> list[str]:
    paths = [value] if isinstance(value, str) else _list(value, "images")
    if not all(isinstance(path, str) for path in paths):
        raise InputError("its images are no list of paths")
    return paths
