"""Host-side book of the KV pool: which blocks are free, and how many owners the others have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Items


class BlockManager:
    """Reference-counted blocks of one pool under two quotas, for self- and for cross-attention.

    A block may have a key, which says what it holds: it is found by it while it has owners, and after that until the
    room is needed, the longest unused first. Block 0 is the null block, which
    belongs to nobody: padding rows of a batch write there.
    """

    def __init__(self, num_self: int, num_cross: int):
        self.quota = {"self": num_self, "cross": num_cross}
        self.num_used = {"self": 0, "cross": 0}
        self._free = list(range(num_self + num_cross, 0, -1))
        self._others: dict[int, int] = {}  # owners of a block besides the first one
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        # without owners, found by their key; the oldest first, which a plain dict is the longer in finding the more it
        # has lost
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return sum(self.quota.values()) + 1

    def available(self, kind: str) -> int:
        return self.quota[kind] - self.num_used[kind]

    def allocate(self, count: int, kind: str) -> list[int]:
        """Takes `count` blocks; the caller has asked `available` first."""
        assert count <= self.available(kind), "allocation over quota"
        blocks = self._free[: -count - 1 : -1]
        del self._free[len(self._free) - len(blocks) :]
        if len(blocks) < count:
            blocks += [self._evict() for _ in range(count - len(blocks))]
        self.num_used[kind] += count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Adds an owner to each block."""
        for block in blocks:
            self._others[block] = self._others.get(block, 0) + 1

    def free(self, blocks: Items[int], kind: str = "self") -> None:
        """Takes an owner from each block; a block without owners returns to the pool, which gives them out in the same
        order again: what reads one sequence's cache is fastest over a run of it."""
        ended: Items[int] = blocks[::-1]
        if self._others:
            ended = [block for block in ended if not self._leave_to_others(block)]
        self.num_used[kind] -= len(ended)
        if self._keys:
            self._evictable.update(dict.fromkeys(block for block in ended if block in self._keys))
            ended = [block for block in ended if block not in self._keys]
        self._free += ended

    # --- blocks by what they hold ---
    def register(self, block: int, key: bytes) -> None:
        """Lets the block be found from now on by `key`, unless another one is."""
        if key not in self._by_key and block not in self._keys:
            self._by_key[key], self._keys[block] = block, key

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """Returns the blocks of these keys, up to the first that there is none of. They change no owner: see
        `acquire`."""
        blocks = []
        for key in keys:
            if (block := self._by_key.get(key)) is None:
                break
            blocks.append(block)
        return blocks

    def num_evictable(self, blocks: Iterable[int]) -> int:
        """Returns how many of these count against the quota once they are taken."""
        return len(self._evictable.keys() & blocks)

    def acquire(self, blocks: Iterable[int], kind: str) -> None:
        """Adds an owner to blocks that `lookup` gave."""
        for block in blocks:
            if block in self._evictable:
                del self._evictable[block]
                self.num_used[kind] += 1
            else:
                self.share([block])

    def reset_prefix_cache(self) -> None:
        """Lets no block be found by what it holds any more."""
        self._free += self._evictable
        self._evictable, self._by_key, self._keys = OrderedDict(), {}, {}

    def _leave_to_others(self, block: int) -> bool:
        """Takes an owner from a block that has others; says whether it does."""
        others = self._others.pop(block, 0)
        if others > 1:
            self._others[block] = others - 1
        return others > 0

    def _evict(self) -> int:
        block, _ = self._evictable.popitem(last=False)
        del self._by_key[self._keys.pop(block)]
        return block

    @property
    def balanced(self) -> bool:
        """Says whether nothing is owned, and every block is free or kept exactly once."""
        is_owned = any(self.num_used.values()) or bool(self._others)
        return not is_owned and sorted([*self._free, *self._evictable]) == list(range(1, self.num_blocks))
