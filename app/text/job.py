"""Texts through a model, in their order; what fails leaves an empty line and is named."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from vlm.errors import VlmError
from vlm_app.core.renamed import with_flags
from vlm_app.text.sources import Item
from vlm_app.text.tasks import ToInput

if TYPE_CHECKING:
    from vlm.api.pipeline import Output, Pipeline


TEXTS = ("text", "prompt", "raw_prompt", "src_lang", "suffix", "truncate")  # what token ids stand for


@dataclass
class Report:
    """What was done."""

    texts: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class TextJob:
    """Runs items through a pipeline and writes a line each, or where each gives several outputs a line an output; a
    lone item's output is written as it is."""

    def __init__(
        self,
        pipeline: Pipeline,
        to_input: ToInput,
        out: TextIO,
        *,
        sampling: dict[str, Any],
        as_json: bool = False,
        alone: bool = False,
        show: Callable[[Report], None] = lambda report: None,
    ):
        self.pipeline, self.to_input, self.out = pipeline, to_input, out
        self.sampling, self.as_json, self.alone, self.show = sampling, as_json, alone, show
        self.count = sampling.get("num_return_sequences") or 1
        self.report = Report()

    def run(self, items: Iterable[Item]) -> Report:
        start = time.perf_counter()
        for item, result in in_order(self.pipeline, items, self.to_input, self.sampling):
            self._write(item, result)
            self.report.texts += 1
            self.report.seconds = time.perf_counter() - start
            self.show(self.report)
        return self.report

    def stream(self, item: Item) -> Report:
        """Writes one item's text as it is decoded."""
        if item.error is not None or item.is_empty:
            return self.run([item])
        start = time.perf_counter()
        try:
            for piece in self.pipeline.stream(input_of(item, self.to_input), **self.sampling):
                print(piece, end="", file=self.out, flush=True)
            self.report.tokens = len(self.pipeline.last_output.token_ids)
        except VlmError as error:
            self._fail(item, with_flags(error))
        print(file=self.out, flush=True)
        self.report.texts, self.report.seconds = 1, time.perf_counter() - start
        return self.report

    def _fail(self, item: Item, reason: str) -> None:
        self.report.failures.append(f"{item.place}: {reason.rstrip('.')}.")

    def _write(self, item: Item, result: Output | str | None) -> None:
        if isinstance(result, str):
            self._fail(item, result)
        elif result is not None:
            self.report.tokens += sum(len(output.token_ids) for output in (result, *result.alternatives))
        for line in [_json(item, result)] if self.as_json else self._lines(result):
            print(line, file=self.out, flush=True)

    def _lines(self, result: Output | str | None) -> list[str]:
        """Returns a line an output, whatever its text holds; as many empty ones where there is none."""
        if result is None or isinstance(result, str):
            return [""] * self.count
        texts = [text_of_output(self.pipeline, output) for output in (result, *result.alternatives)]
        return texts if self.alone and len(texts) == 1 else [" ".join(text.splitlines()) for text in texts]


def text_of_output(pipeline: Pipeline, output: Output, *, raw: bool = False) -> str:
    """Returns an output's text, as decoded where it is to be `raw`; its ids where the model has no tokenizer."""
    if pipeline.tokenizer is None:
        return " ".join(map(str, output.token_ids))
    return output.raw_text if raw else output.text


def input_of(item: Item, to_input: ToInput) -> dict[str, Any]:
    """Returns what its text becomes, with what else it has; a conversation has its texts in it, and ids stand
    for one."""
    fields = {} if "messages" in item.fields else to_input(item.text)
    return {**{k: v for k, v in fields.items() if k not in TEXTS or "input_ids" not in item.fields}, **item.fields}


def in_order(
    pipeline: Pipeline, items: Iterable[Item], to_input: ToInput, sampling: dict[str, Any]
) -> Iterator[tuple[Item, Output | str | None]]:
    """Yields each item with its output, with what is wrong with it, or with None if it is empty. Few are held
    at once."""
    pending: dict[int, tuple[Item, Any]] = {}  # by number
    numbers: dict[int, int] = {}  # the pipeline's number of an input -> its item's
    counter = itertools.count()

    def inputs() -> Iterator[dict[str, Any]]:
        for number, item in enumerate(items):
            pending[number] = (item, ...)
            if item.error is None and not item.is_empty:
                numbers[next(counter)] = number
                yield input_of(item, to_input)
            else:
                pending[number] = (item, item.error)

    turn = 0
    for index, result in pipeline.as_completed(inputs(), on_error="yield", **sampling):
        number = numbers.pop(index)
        pending[number] = (pending[number][0], with_flags(result) if isinstance(result, VlmError) else result)
        while turn in pending and pending[turn][1] is not ...:
            yield pending.pop(turn)
            turn += 1
    yield from (pending[number] for number in sorted(pending))


def output_fields(output: Output) -> dict[str, Any]:
    """Returns what an output's JSON has, its alternatives the same; what there is nothing of is left out."""
    from vlm.api.outputs import json_fields

    others = [output_fields(other) for other in getattr(output, "alternatives", ())]
    fields = {**json_fields(output), "alternatives": others}
    return {**{k: v for k, v in fields.items() if v not in (None, [], ())}, "tokens": len(output.token_ids)}


def _json(item: Item, result: Output | str | None) -> str:
    origin = {name: item.fields[name] for name in ("input_ids",) if name in item.fields} or {"source": item.text}
    fields: dict[str, Any] = {**origin, "file": item.source or None, "line": item.line}
    fields = {name: value for name, value in fields.items() if value is not None}
    if isinstance(result, str):
        fields["error"] = result
    elif result is not None:
        fields |= output_fields(result)
    return json.dumps(fields, ensure_ascii=False)
