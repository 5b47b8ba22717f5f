"""Outputs of `vlm run` on stdout, and a line about the time on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlm.errors import VlmError, counted
from vlm_app.cli.display.profiling import STAGES, Profile, tokens_of
from vlm_app.cli.errors import print_error
from vlm_app.core.renamed import with_flags
from vlm_app.text.job import output_fields, text_of_output

if TYPE_CHECKING:
    from vlm.api.pipeline import Output, Pipeline


class Printer:
    """Runs inputs and prints what comes. Keeps the inputs that were answered, with their outputs."""

    def __init__(
        self, pipeline: Pipeline, sampling: dict[str, Any], *, raw: bool = False, top_logprobs: int | None = None
    ):
        """Prints texts as decoded where they are to be `raw`, and at most so many of the likeliest tokens at each
        place; None: as many as `sampling` asks for."""
        self.pipeline, self.sampling, self.raw, self.top_logprobs = pipeline, sampling, raw, top_logprobs
        self.results: list[tuple[dict[str, Any], Output]] = []
        self.failures = 0
        self.profile = Profile()

    def stream(self, inputs: list[dict[str, Any]]) -> None:
        """Prints texts as they are decoded."""
        for fields in inputs:
            try:
                for piece in self.profile.timed(self.pipeline.stream(fields, **self.sampling)):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
                print()
                self._keep(fields, self.pipeline.last_output)
                self._report([self.pipeline.last_output])
            except VlmError as error:
                self._fail(error)

    def whole(self, inputs: list[dict[str, Any]], json_lines: bool, places: list[str] | None = None) -> None:
        """Prints whole outputs in the order of the inputs, of several outputs one after the other; `places` name the
        inputs in errors."""
        results = self.pipeline.as_completed(inputs, on_error="yield", **self.sampling)
        for index, result in _in_order(results):
            if isinstance(result, VlmError):
                self._fail(f"{places[index]}: {with_flags(result)}" if places else result)
                continue
            self._keep(inputs[index], result)
            print(self._json(inputs[index], result) if json_lines else self._texts(result), flush=True)
        self._report([output for _, output in self.results])

    def _json(self, fields: dict[str, Any], output: Output) -> str:
        return as_json(fields, output if self.top_logprobs is None else with_likeliest(output, self.top_logprobs))

    def _texts(self, output: Output) -> str:
        outputs = (output, *getattr(output, "alternatives", ()))
        return "\n".join(text_of_output(self.pipeline, each, raw=self.raw) for each in outputs)

    def _keep(self, fields: dict[str, Any], output: Output) -> None:
        self.results.append((fields, output))

    def _fail(self, error: str | VlmError) -> None:
        print_error(error)
        self.failures += 1

    def _report(self, outputs: list[Output]) -> None:
        """Prints where the time went."""
        if not outputs:
            return
        self.profile.add(self.pipeline, outputs)
        times, tokens = self.pipeline.timings, tokens_of(outputs)
        parts = ", ".join(f"{name} {times[name]:.2f}" for name in STAGES)
        rate = f", {tokens / times['decode']:.0f} tokens/s decoding" if times["decode"] > 0 else ""
        reasons = ", ".join(sorted({output.finish_reason for output in outputs}))
        print(f"{counted(tokens, 'token')} ({reasons}) in {times['total']:.2f} s: {parts}{rate}", file=sys.stderr)


def _in_order(results: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    pending, turn = {}, 0
    for index, result in results:
        pending[index] = result
        while turn in pending:
            yield turn, pending.pop(turn)
            turn += 1


def with_likeliest(output: Output, count: int) -> Output:
    """Returns an output with at most so many of the likeliest tokens at each place."""
    if not output.top_logprobs:
        return output
    kept = [dict(sorted(top.items(), key=lambda one: -one[1])[:count]) for top in output.top_logprobs]
    return replace(output, top_logprobs=kept if count else None)


def as_json(fields: dict[str, Any], output: Output) -> str:
    """Returns an object on one line: the names of the input, then the output."""
    import json

    return json.dumps({**_names(fields), **output_fields(output)}, ensure_ascii=False)


def _names(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the names of an input. What came over stdin is `-`, a page of a document has its number beside it."""
    if "input_ids" in fields:
        return {"input_ids": fields["input_ids"]}
    if "text" in fields:
        return {"input": fields["text"]}
    images = [_name(source) for source in fields.get("images") or ()]
    pages = [getattr(source, "page", None) for source in fields.get("images") or ()]
    numbers = [None if page is None else page + 1 for page in pages]
    names = {"image": images[0]} if len(images) == 1 else {"images": images} if images else {}
    if any(numbers):
        names |= {"page": numbers[0]} if len(images) == 1 else {"pages": numbers}
    prompt = next((fields[name] for name in ("prompt", "raw_prompt") if fields.get(name) is not None), None)
    return names if prompt is None else {**names, "prompt": prompt}


def _name(source: Any) -> str:
    of = getattr(source, "source", source)  # a page's document
    return of if isinstance(of, str) else "-"
