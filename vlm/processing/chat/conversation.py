"""Conversations. Messages become one of these where they come in, whoever wrote them, and stay one from there on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlm.errors import InputError, LengthError, listed
from vlm.processing.text.token_bounds import check_size

PLACEHOLDER = "<image>"
ROLES = ("system", "user", "assistant")
MIN_PARTS = 256  # of a conversation that are taken by every model


@dataclass(frozen=True)
class ImagePart:
    """Says where an image stands."""

    source: Any = None  # what load_image takes; None: it comes apart from the conversation


@dataclass(frozen=True)
class Message:
    """A turn of a conversation."""

    role: str
    parts: tuple[str | ImagePart, ...]  # a text says with PLACEHOLDER, too, where an image stands

    @property
    def text(self) -> str:
        """Returns the texts, without the images."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def pieces(self) -> list[str]:
        """Returns texts and, where images stand between them, PLACEHOLDER."""
        return [p for part in self.parts for p in (split_text(part) if isinstance(part, str) else [PLACEHOLDER])]

    @property
    def has_images(self) -> bool:
        return PLACEHOLDER in self.pieces

    def for_template(self, *, plain: bool) -> dict[str, Any]:
        """Returns the turn as chat templates take it: with its parts, or as one text."""
        if plain:
            return {"role": self.role, "content": "".join(self.pieces)}
        parts = [{"type": "image"} if p == PLACEHOLDER else {"type": "text", "text": p} for p in self.pieces]
        return {"role": self.role, "content": parts}


@dataclass(frozen=True)
class Conversation:
    """Messages in order, each checked."""

    messages: tuple[Message, ...]

    @classmethod
    def from_messages(cls, messages: Any, limit: int | None = None) -> Conversation:
        """Reads messages as a pipeline takes them. `limit`: the tokens that a model reads; None: it is not known yet.

        A message is {"role", "content"}; the content is a text, or a list of {"type": "text", "text"} and
        {"type": "image", "image"}, or "path" in place of the latter. InputError names what is wrong, LengthError says
        that it is too much.
        """
        if not isinstance(messages, list | tuple) or not messages:
            raise InputError('messages is empty; give a list of {"role": "user", "content": "..."}.')
        if limit is not None:
            check_messages(messages, limit)
        return cls(tuple(_message(number, message) for number, message in enumerate(messages, 1)))

    @property
    def images(self) -> list[Any]:
        """Returns the images that it holds, in order."""
        parts = (part for message in self.messages for part in message.parts)
        return [part.source for part in parts if isinstance(part, ImagePart) and part.source is not None]

    @property
    def num_placed(self) -> int:
        """Returns how many images stand in it."""
        return sum(message.pieces.count(PLACEHOLDER) for message in self.messages)

    def with_turn(self, role: str, *parts: str | ImagePart) -> Conversation:
        """Returns the conversation with one more message."""
        return Conversation((*self.messages, Message(role, parts)))

    def check_size(self, limit: int) -> None:
        """Raises LengthError as `check_messages`."""
        parts = (part for message in self.messages for part in message.parts or ("",))
        _check_sizes([len(part) if isinstance(part, str) else 0 for part in parts], limit)

    def with_pages(self, counts: Iterable[int]) -> Conversation:
        """Returns the conversation with its i-th image as often as it has pages: `counts[i]`."""
        count = iter(counts)
        return self._with_images(lambda image: (image,) * next(count))

    def with_sources(self, found: Callable[[Any], Any]) -> Conversation:
        """Returns the conversation with its images' sources as `found` makes them."""
        return self._with_images(lambda image: (image if image.source is None else ImagePart(found(image.source)),))

    def _with_images(self, images: Callable[[ImagePart], tuple[ImagePart, ...]]) -> Conversation:
        """Returns the conversation with `images` of each image in its place."""
        parts = lambda part: images(part) if isinstance(part, ImagePart) else (part,)  # noqa: E731
        return Conversation(
            tuple(Message(m.role, tuple(each for part in m.parts for each in parts(part))) for m in self.messages)
        )


def check_messages(messages: Iterable[Any], limit: int) -> None:
    """Raises LengthError for more text than is read for `limit` tokens, or more messages and parts than tokens; what
    else is wrong with them is said when they are read."""
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    _check_sizes([size for content in contents for size in _sizes(content)], limit)


def _check_sizes(sizes: list[int], limit: int) -> None:
    """Raises LengthError as `check_messages`; `sizes`: of each part its characters."""
    if len(sizes) > max(limit, MIN_PARTS):
        raise LengthError(
            f"the conversation has {len(sizes):,} messages and parts; this model takes {limit:,} tokens in all. Leave"
            " out earlier ones."
        )
    check_size(sum(sizes), limit)


def _sizes(content: Any) -> Iterator[int]:
    """Yields the characters of each part of a content; of one without parts, which is a message all the same, 0."""
    parts = content if isinstance(content, list | tuple) else [content]
    for part in parts or [""]:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        yield len(text) if isinstance(text, str) else 0


def _message(number: int, message: Any) -> Message:
    if not isinstance(message, Mapping) or message.get("role") not in ROLES or "content" not in message:
        raise InputError(f"message {number} needs a role ({listed(ROLES)}) and a content.")
    if not isinstance(content := message["content"], str | list | tuple):
        raise InputError(f"the content of message {number} is neither a text nor a list of parts.")
    parts = (content,) if isinstance(content, str) else tuple(_part(number, part) for part in content)
    return Message(message["role"], parts)


def _part(number: int, part: Any) -> str | ImagePart:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if kind != "image":
        raise InputError(f"message {number} holds a part of type {kind!r}; allowed are text and image.")
    if named := [name for name in ("url", "base64") if name in part]:
        raise InputError(f"message {number} holds an image's {named[0]}; give its path, bytes or picture as `image`.")
    return ImagePart(part.get("image", part.get("path")))


def split_text(text: str) -> list[str]:
    """Splits a text at its placeholders, which are kept; empty pieces are not."""
    pieces = [piece for text_piece in text.split(PLACEHOLDER) for piece in (PLACEHOLDER, text_piece)][1:]
    return [piece for piece in pieces if piece]
