"""A conversation on the terminal, or over a pipe: a line of stdin a turn, answers on stdout as they are decoded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer

from vlm.errors import InputError, VlmError
from vlm.processing.chat.conversation import Conversation, ImagePart
from vlm_app.cli.display.outputs import as_json
from vlm_app.cli.display.profiling import Profile, print_profile
from vlm_app.cli.errors import USER_ERROR, print_error

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm_app.cli.options.extras import Extras

COMMANDS = "/image FILE attaches an image to the next turn, /reset begins anew, /exit ends"


class Chat:
    """Keeps the conversation, and what goes with the next turn."""

    def __init__(
        self,
        pipeline: Pipeline,
        sampling: dict[str, Any],
        images: list[Any],
        extras: Mapping[str, Any] = MappingProxyType({}),
        json_lines: bool = False,
    ):
        """Begins a conversation: `images` go with the first turn, `extras`, fields of inputs, with every one.

        Raises InputError for a model that does not converse.
        """
        self.pipeline, self.sampling, self.json_lines = pipeline, sampling, json_lines
        self.fields = dict(extras)
        self.conversation = Conversation(())
        self.images: list[Any] = []
        self.failures = 0
        self.profile = Profile()
        pipeline.request({"messages": self.conversation.with_turn("user", "a"), **self.fields}, **sampling)
        for image in images:
            self.attach(image)

    def run(self, lines: Iterator[str]) -> int:
        """Returns the number of turns that failed."""
        for line in lines:
            command, _, rest = line.strip().partition(" ")
            if command == "/exit":
                break
            if command == "/reset":
                self.conversation, self.images = Conversation(()), []
            elif command == "/image":
                self._tried(self.attach, rest.strip())
            elif command.startswith("/"):
                self._tried(_unknown, command)
            elif command:
                self._tried(self.answer, line)
        return self.failures

    def attach(self, source: Any) -> None:
        """Reads an image for the next turn. ImageError when it cannot be read."""
        from vlm.processing.media.images import load_image

        if not self.pipeline.capabilities.takes_images:
            raise InputError(f"{self.pipeline.family.name} takes text, not images.")
        self.images.append(load_image(source, detail=self.pipeline.image_processor))

    def answer(self, text: str) -> None:
        """Prints the model's answer; a turn that fails is as if it had not been."""
        conversation = self.conversation.with_turn("user", *map(ImagePart, self.images), text)
        source = {"messages": conversation, **self.fields}
        for piece in self.profile.timed(self.pipeline.stream(source, **self.sampling)):
            if not self.json_lines:
                print(piece, end="", flush=True)
        output = self.pipeline.last_output
        print(as_json({"prompt": text}, output) if self.json_lines else "", flush=True)
        self.profile.add(self.pipeline, [output])
        self.conversation = conversation.with_turn("assistant", output.text)
        self.images = []

    def _tried(self, action: Callable[[str], None], argument: str) -> None:
        try:
            action(argument)
        except VlmError as error:
            print_error(error)
            self.failures += 1


def _unknown(command: str) -> None:
    raise InputError(f"{command} is no command: {COMMANDS}.")


def turns() -> Iterator[str]:
    """Lines of stdin; on a terminal with a prompt, and with a history that the arrows reach. What is not UTF-8 is named
    and left out."""
    from vlm_app.text.sources import lines

    if sys.stdin.isatty() and sys.stdout.isatty():
        yield from _typed()
        return
    for item in lines("stdin", sys.stdin.buffer):
        if item.error is not None:
            print_error(f"{item.place}: {item.error}.")
        else:
            yield item.text


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() edits lines with it
    print(f"Ctrl-D ends; {COMMANDS}.", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            return


def converse(
    pipeline: Pipeline,
    sampling: dict[str, Any],
    images: list[Any],
    extras: Extras,
    json_lines: bool,
    profiling: bool,
) -> None:
    """Runs all of --chat; exits with 2 if a turn failed."""
    chat = Chat(pipeline, sampling, images, extras=extras.alone(), json_lines=json_lines)
    failed = chat.run(turns())
    if profiling and chat.profile.requests:
        print_profile(chat.profile, pipeline)
    if failed:
        raise typer.Exit(USER_ERROR)
