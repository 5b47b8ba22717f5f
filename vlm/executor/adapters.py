"""Which adapters lie on the device, and where in the banks of its layers."""

from __future__ import annotations

from vlm.errors import InputError, LimitError, counted
from vlm.layers.adapters.base import AdapterRoom
from vlm.requests.adapters import NO_ADAPTER


class AdapterSlots:
    """The slots of adapters in the banks, by their numbers. A number is given once, a slot again and again."""

    def __init__(self, room: AdapterRoom | None = None, count: int = 0):
        """`room`: of the banks; None: there are none. Adapters of the first `count` numbers are there."""
        self._room = room
        self._slots = {number: number for number in (NO_ADAPTER, *range(count))}

    def check(self, adapter_id: int) -> None:
        """Raises InputError for an adapter that is not there."""
        if adapter_id not in self._slots:
            raise InputError(f"the request's adapter, number {adapter_id}, is not loaded; name another one.")

    def __getitem__(self, adapter_id: int) -> int:
        """Returns the slot of an adapter; that of NO_ADAPTER is its own number. Raises InputError as `check`."""
        self.check(adapter_id)
        return self._slots[adapter_id]

    def take(self, adapter_id: int, rank: int) -> int:
        """Gives a slot to an adapter. Raises LimitError where there is none, or the rank is too high."""
        count, most = (0, 0) if self._room is None else (self._room.max_loras, self._room.max_rank)
        free = set(range(count)) - set(self._slots.values())
        if not free:
            have = f"there is room for {counted(count, 'adapter')} at once"
            raise LimitError(f"{have}; unload one" if count else have, "start with more --max-loras")
        if rank > most:
            raise LimitError(
                f"there is room for adapters of rank {most}, this one has {rank}", "start with a higher --max-lora-rank"
            )
        self._slots[adapter_id] = min(free)
        return self._slots[adapter_id]

    def free(self, adapter_id: int) -> None:
        """Takes an adapter's slot from it. No sequence may have it any more."""
        del self._slots[adapter_id]
