"""Which replica a request goes to."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

LOAD_FACTOR = 1.25  # times the average load is what affinity may make of a replica's
MAX_KEYS = 65_536  # that are remembered


class Router:
    """Chooses the replica with the fewest requests under way; of several, the one that was chosen longest ago.

    What a request has in common with earlier ones (`keys`, the most telling first) comes before that: it goes to the
    replica that had the first of its keys last, as long as this one would then hold at most LOAD_FACTOR times its share
    of all requests under way. That is the bound of consistent hashing with bounded loads (Mirrokni, Thorup and
    Zadimoghaddam, 2016): no replica waits for another one's cache.
    """

    def __init__(self, replicas: Collection[str]):
        self.outstanding = dict.fromkeys(replicas, 0)  # requests under way
        self._chosen = dict.fromkeys(replicas, -1)  # when it was chosen last
        self._turn = count()
        self._last: OrderedDict[bytes, str] = OrderedDict()  # key -> who had it last; the latest used at the end

    @contextmanager
    def assigned(self, keys: Sequence[bytes], among: Collection[str]) -> Iterator[str]:
        """Gives one of the replicas, on which the request is under way meanwhile."""
        replica = self._choice(keys, among)
        self._chosen[replica] = next(self._turn)
        self._remember(keys, replica)
        self.outstanding[replica] += 1
        try:
            yield replica
        finally:
            self.outstanding[replica] -= 1

    def forget(self, replica: str) -> None:
        """Forgets what a replica has seen: it has ended."""
        for key in [key for key, name in self._last.items() if name == replica]:
            del self._last[key]

    def _choice(self, keys: Sequence[bytes], among: Collection[str]) -> str:
        seen = (self._last.get(key) for key in keys)
        favourite = next((replica for replica in seen if replica in among), None)
        total = sum(self.outstanding[replica] for replica in among)
        if favourite is not None and self.outstanding[favourite] < math.ceil(LOAD_FACTOR * (total + 1) / len(among)):
            return favourite
        return min(among, key=lambda replica: (self.outstanding[replica], self._chosen[replica]))

    def _remember(self, keys: Sequence[bytes], replica: str) -> None:
        for key in keys:
            self._last[key] = replica
            self._last.move_to_end(key)
        while len(self._last) > MAX_KEYS:
            self._last.popitem(last=False)
