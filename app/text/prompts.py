"""A line of JSON that asks a model in words: a prompt or a conversation, with images or without."""

from __future__ import annotations

import json
from typing import Any

from vlm.errors import InputError, listed
from vlm_app.text.sources import Item, checked

WORDS = ("prompt", "text", "messages")


def prompt_of(item: Item, raw: bool = False) -> Item:
    """{"prompt" or "text": …} or {"messages": [{"role", "content"}, …]}, each with "images": [path, …] or without ->
    the item that it asks for. `raw`: prompts are taken as they are, so a conversation is an error."""
    if item.error or not item.text.strip():
        return item
    try:
        fields = _fields(item)
        given = {"images": _images(fields["images"])} if fields.get("images") else {}
        if "messages" in fields:
            if raw:
                raise InputError("it is a conversation, which needs the template that --raw-prompt leaves out")
            given["messages"] = [_with_paths(message) for message in _list(fields["messages"], "messages")]
        return Item(item.source, item.line, _text(fields), fields=given)
    except InputError as error:
        return Item(item.source, item.line, error=str(error))


def _fields(item: Item) -> dict[str, Any]:
    wanted = '"prompt", "text" or "messages"'
    try:
        fields = json.loads(item.text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not any(name in fields for name in (*WORDS, "images")):
        raise InputError(f"it is no JSON object with {wanted}")
    if len(found := [name for name in WORDS if name in fields]) > 1:
        raise InputError(f"it has {listed(found)}; give one of them")
    if error := checked(Item("", None, json.dumps(fields, ensure_ascii=False))).error:
        raise InputError(error)
    return fields


def _text(fields: dict[str, Any]) -> str:
    """Returns the prompt, or what was said last."""
    if "messages" not in fields:
        text = next((fields[name] for name in WORDS if name in fields), "")
        if not isinstance(text, str):
            raise InputError(f"its {'prompt' if 'prompt' in fields else 'text'} is no string")
        return text
    last = fields["messages"][-1] if fields["messages"] else None
    content = last.get("content") if isinstance(last, dict) else None
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"its {name} are no list")
    return value


def _images(value: Any) -> list[str]:
    paths = _list(value, "images")
    if not all(isinstance(path, str) for path in paths):
        raise InputError("its images are no list of paths")
    return paths


def _with_paths(message: Any) -> Any:
    """Rewrites a part: {"type": "image", "path": …} is the pipeline's {"type": "image", "image": …}; all else it checks
    itself."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [_part(part) for part in message["content"]]}


def _part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image" or "path" not in part:
        return part
    [path] = _images([part["path"]])
    return {"type": "image", "image": path}
