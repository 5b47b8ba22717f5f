"""What a request's inputs have given so far, for protocols whose responses hold all of it."""

from __future__ import annotations

from dataclasses import replace

from vlm.api.async_pipeline import Piece
from vlm.api.outputs import Output
from vlm_app.server.core.generation_input import GenerationInput

NOTHING = Output("", "", [], "", [], 0)


class PartialOutputs:
    """The outputs of each input, growing with their pieces."""

    def __init__(self, items: list[GenerationInput]):
        self._rows: list[dict[int, Output]] = [{0: NOTHING} for _ in items]
        self._left = [each.sampling.get("num_return_sequences") or 1 for each in items]  # outputs that have not ended

    def take(self, number: int, piece: Piece) -> bool:
        """Adds a piece of an input. Returns False in the midst of a search's outcomes, which come at once."""
        row = self._rows[number]
        row[piece.index] = _grown(row.get(piece.index, NOTHING), piece)
        self._left[number] -= piece.output is not None
        return piece.output is None or not self._left[number]

    @property
    def ended(self) -> bool:
        return not any(self._left)

    @property
    def rows(self) -> list[list[Output]]:
        """Returns each input's outputs, the best first."""
        return [[row[index] for index in sorted(row)] for row in self._rows]


def _grown(known: Output, piece: Piece) -> Output:
    if piece.output is not None:
        return piece.output
    tokens, logprobs = [*known.token_ids, *piece.delta.token_ids], [*known.logprobs, *piece.delta.logprobs]
    return replace(known, text=known.text + piece.text, token_ids=tokens, logprobs=logprobs)
