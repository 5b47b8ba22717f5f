"""Texts through a model, in their order; what fails leaves an empty line and is named."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from app.text.sources import Item
from app.text.tasks import ToInput
from vlm.errors import VlmError

if TYPE_CHECKING:
    from vlm.pipeline import Output, Pipeline


@dataclass
class Report:
    """What was done."""

    texts: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class TextJob:
    """Runs items through a pipeline and writes a line each."""

    def __init__(
        self,
        pipeline: Pipeline,
        to_input: ToInput,
        out: TextIO,
        *,
        sampling: dict[str, Any],
        as_json: bool = False,
        show: Callable[[Report], None] = lambda report: None,
    ):
        self.pipeline, self.to_input, self.out = pipeline, to_input, out
        self.sampling, self.as_json, self.show = sampling, as_json, show
        self.report = Report()

    def run(self, items: Iterable[Item]) -> Report:
        start = time.perf_counter()
        for item, result in in_order(self.pipeline, items, self.to_input, self.sampling):
            self._write(item, result)
            self.report.texts += 1
            self.report.seconds = time.perf_counter() - start
            self.show(self.report)
        return self.report

    def _write(self, item: Item, result: Output | str | None) -> None:
        if isinstance(result, str):
            self.report.failures.append(f"{item.place}: {result}")
        elif result is not None:
            self.report.tokens += len(result.token_ids)
        line = _json(item, result) if self.as_json else _line(result)
        print(line, file=self.out, flush=True)


def in_order(
    pipeline: Pipeline, items: Iterable[Item], to_input: ToInput, sampling: dict[str, Any]
) -> Iterator[tuple[Item, Output | str | None]]:
    """Each item with its output, with what is wrong with it, or with None if it is empty. Few are held at once."""
    held: dict[int, tuple[Item, Any]] = {}  # by number
    asked: list[int] = []  # number of each input of the pipeline

    def inputs() -> Iterator[dict[str, Any]]:
        for number, item in enumerate(items):
            held[number] = (item, ...)
            if item.error is None and item.text.strip():
                asked.append(number)
                yield to_input(item.text)
            else:
                held[number] = (item, item.error)

    turn = 0
    for index, result in pipeline.as_completed(inputs(), on_error="yield", **sampling):
        number = asked[index]
        held[number] = (held[number][0], str(result) if isinstance(result, VlmError) else result)
        while turn in held and held[turn][1] is not ...:
            yield held.pop(turn)
            turn += 1
    yield from (held[number] for number in sorted(held))


def _line(result: Output | str | None) -> str:
    """A line a text, whatever the text holds."""
    return " ".join(result.text.splitlines()) if result is not None and not isinstance(result, str) else ""


def _json(item: Item, result: Output | str | None) -> str:
    fields: dict[str, Any] = {"source": item.text, "line": item.line}
    if isinstance(result, str):
        fields["error"] = result
    elif result is not None:
        fields |= {k: v for k, v in dataclasses.asdict(result).items() if v not in (None, ())}
    return json.dumps(fields, ensure_ascii=False)
