"""Keys and values of encoders' rows that nothing has read yet: where steps attend to the rows themselves, nothing
does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vlm.requests.sequence import Sequence

# of a pass, from which on its keys and values wait: those of fewer are computed in one graph with the pass
LONG_ROWS = 4096


class WaitingKV:
    """The sequences whose encoder's rows are in the cache, without their keys and values."""

    def __init__(self, num_slots: int, absorbs: Callable[[int], bool]):
        """`absorbs`: says whether a step over so many encoder's rows attends to the rows themselves."""
        self._num_slots, self._absorbs = num_slots, absorbs
        self._sequences: list[Sequence] = []

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def defers(self, sequences: list[Sequence], rows: int, *, adapted: bool) -> bool:
        """Notes, and says, whether the keys and values of a pass over so many rows of these sequences wait: not those
        that adapters change, which no step does without, nor of texts so short that steps read them in every slot."""
        wait = rows > LONG_ROWS and not adapted and self._absorbs(self._num_slots * rows // len(sequences))
        if wait or self._sequences:
            new = set(sequences)
            self._sequences = [s for s in self._there() if s not in new] + (sequences if wait else [])
        return wait

    def take(self, sequences: Iterable[Sequence] | None = None) -> list[Sequence]:
        """Returns those of `sequences`, of all where None are given, whose keys and values are to be computed now."""
        wanted, there = None if sequences is None else set(sequences), self._there()
        taken = [s for s in there if wanted is None or s in wanted]
        self._sequences = [] if wanted is None else [s for s in there if s not in wanted]
        return taken

    def _there(self) -> list[Sequence]:
        """Returns those that have slots: others have ended, or will be encoded again."""
        return [sequence for sequence in self._sequences if sequence.slots]
