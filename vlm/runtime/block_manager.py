"""Host-side book of the KV pool: which blocks are free, and how many owners the others have."""

from __future__ import annotations

from collections.abc import Iterable


class BlockManager:
    """Reference-counted blocks of one pool under two quotas, for self- and for cross-attention.

    Block 0 belongs to nobody: spare rows of a batch write there.
    """

    def __init__(self, num_self: int, num_cross: int):
        self.quota = {"self": num_self, "cross": num_cross}
        self.used = {"self": 0, "cross": 0}
        self._free = list(range(num_self + num_cross, 0, -1))
        self._owners: dict[int, int] = {}
        self._kind: dict[int, str] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the spare one included."""
        return sum(self.quota.values()) + 1

    def available(self, kind: str) -> int:
        return self.quota[kind] - self.used[kind]

    def allocate(self, count: int, kind: str) -> list[int]:
        """Takes `count` blocks; the caller has asked `available` first."""
        assert count <= self.available(kind), "allocation over quota"
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._owners[block], self._kind[block] = 1, kind
        self.used[kind] += count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each block."""
        for block in blocks:
            self._owners[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One owner less; a block without owners returns to the pool."""
        for block in blocks:
            self._owners[block] -= 1
            if not self._owners[block]:
                del self._owners[block]
                self.used[self._kind.pop(block)] -= 1
                self._free.append(block)

    @property
    def balanced(self) -> bool:
        """Nothing is owned and every block is free exactly once."""
        return not self._owners and sorted(self._free) == list(range(1, self.num_blocks))
