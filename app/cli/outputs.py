"""Outputs of `vlm run` on stdout, and a line about the time on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vlm_app.cli.errors import complain
from vlm_app.cli.profiling import STAGES, Profile, tokens_of

from vlm.errors import VlmError

if TYPE_CHECKING:
    from vlm.pipeline import Output, Pipeline


class Printer:
    """Runs inputs and prints what comes. Keeps the inputs that were answered, with their outputs."""

    def __init__(self, pipeline: Pipeline, sampling: dict[str, Any]):
        self.pipeline, self.sampling = pipeline, sampling
        self.done: list[tuple[dict[str, Any], Output]] = []
        self.failed = 0
        self.profile = Profile()

    def stream(self, inputs: list[dict[str, Any]]) -> None:
        """Pieces as they are decoded."""
        for given in inputs:
            try:
                for piece in self.profile.timed(self.pipeline.stream(given, **self.sampling)):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
                print()
                self._keep(given, self.pipeline.last_output)
                self._report([self.pipeline.last_output])
            except VlmError as error:
                self._fail(error)

    def whole(self, inputs: list[dict[str, Any]], json_lines: bool) -> None:
        """Whole outputs in the order of the inputs."""
        results = self.pipeline.as_completed(inputs, on_error="yield", **self.sampling)
        for index, result in _in_order(results):
            if isinstance(result, VlmError):
                self._fail(result)
                continue
            self._keep(inputs[index], result)
            print(as_json(inputs[index], result) if json_lines else result.text, flush=True)
        self._report([output for _, output in self.done])

    def _keep(self, given: dict[str, Any], output: Output) -> None:
        self.done.append((given, output))

    def _fail(self, error: VlmError) -> None:
        complain(error)
        self.failed += 1

    def _report(self, outputs: list[Output]) -> None:
        """Where the time went."""
        if not outputs:
            return
        self.profile.add(self.pipeline, outputs)
        times, tokens = self.pipeline.timings, tokens_of(outputs)
        parts = ", ".join(f"{name} {times[name]:.2f}" for name in STAGES)
        rate = f", {tokens / times['decode']:.0f} tokens/s decoding" if times["decode"] > 0 else ""
        ended = ", ".join(sorted({output.finish_reason for output in outputs}))
        print(f"{tokens} tokens ({ended}) in {times['total']:.2f} s: {parts}{rate}", file=sys.stderr)


def _in_order(results: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    held, turn = {}, 0
    for index, result in results:
        held[index] = result
        while turn in held:
            yield turn, held.pop(turn)
            turn += 1


def as_json(given: dict[str, Any], output: Output) -> str:
    """An object on one line: what was given, then the output."""
    import json

    from vlm.outputs import json_fields

    fields = {**_names(given), **json_fields(output), "tokens": len(output.token_ids)}
    return json.dumps(fields, ensure_ascii=False)


def _names(given: dict[str, Any]) -> dict[str, Any]:
    """Of an input. What came over stdin is `-`."""
    if "text" in given:
        return {"input": given["text"]}
    images = [source if isinstance(source, str) else "-" for source in given.get("images") or ()]
    found = {"image": images[0]} if len(images) == 1 else {"images": images} if images else {}
    asked = next((given[name] for name in ("prompt", "raw_prompt") if given.get(name) is not None), None)
    return found if asked is None else {**found, "prompt": asked}
