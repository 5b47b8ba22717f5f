"""What a request's inputs have given so far, for protocols whose responses hold all of it."""

from __future__ import annotations

from dataclasses import replace

from vlm.api.async_pipeline import TextDelta
from vlm.api.outputs import Output
from vlm_app.server.core.generation_input import GenerationInput

NOTHING = Output("", "", [], finish_reason="", logprobs=[], seed=0)


class PartialOutputs:
    """The outputs of each input, growing with their deltas."""

    def __init__(self, items: list[GenerationInput]):
        self._rows: list[dict[int, Output]] = [{0: NOTHING} for _ in items]
        self._pending = [
            each.sampling.get("num_return_sequences") or 1 for each in items
        ]  # outputs that have not ended

    def take(self, number: int, delta: TextDelta) -> bool:
        """Adds a delta of an input. Returns False in the midst of a search's outcomes, which come at once."""
        row = self._rows[number]
        row[delta.index] = _grown(row.get(delta.index, NOTHING), delta)
        self._pending[number] -= delta.output is not None
        return delta.output is None or not self._pending[number]

    @property
    def ended(self) -> bool:
        return not any(self._pending)

    @property
    def rows(self) -> list[list[Output]]:
        """Returns each input's outputs, the best first."""
        return [[row[index] for index in sorted(row)] for row in self._rows]


def _grown(output: Output, delta: TextDelta) -> Output:
    if delta.output is not None:
        return delta.output
    assert delta.update is not None  # an outcome that has not ended
    tokens, logprobs = [*output.token_ids, *delta.update.token_ids], [*output.logprobs, *delta.update.logprobs]
    return replace(output, text=output.text + delta.text, token_ids=tokens, logprobs=logprobs)
