"""Adapters on the host, and which of them lie on the device, where in the banks of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from types import MappingProxyType

import torch
from torch import nn

from vlm.errors import InputError, LimitError, counted, listed
from vlm.layers.adapters.base import AdapterRoom, BankLayers, Layers, rank_of
from vlm.registry.weights.adapters import beside_network, put_adapter
from vlm.requests.adapters import NO_ADAPTER

Adapter = Mapping[str, Layers]  # by role


class AdapterCache:
    """Keeps adapters by their numbers on the host, and those that are used in slots of the device: where all are taken,
    the one that has not been used for longest gives way. A number is given once, a slot again and again."""

    def __init__(
        self,
        networks: Mapping[str, nn.Module] = MappingProxyType({}),
        room: AdapterRoom | None = None,
        *,
        capacity: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        minimum: Callable[[int], int] = int,
    ):
        """`networks`: by role, with banks of this room; None: they have none. `capacity`: adapters on the host.
        `minimum`: the least of a value among all ranks."""
        self._networks, self._capacity = networks, capacity
        self._kind = {"device": device or torch.device("cpu"), "dtype": dtype}
        self.num_slots, self._max_rank = (0, 0) if room is None else (room.max_loras, room.max_rank)
        self._minimum = minimum
        self._adapters: dict[int, Mapping[str, BankLayers]] = {}
        self._slots: dict[int, int] = {}  # of those on the device, the last used one last
        self.on_growth: Callable[[], object] = lambda: None  # is called when layers change that none has changed

    def check(self, adapter_id: int) -> None:
        """Raises InputError for an adapter that is not there."""
        if adapter_id != NO_ADAPTER and adapter_id not in self._adapters:
            raise InputError(f"the request's adapter, number {adapter_id}, is not loaded; name another one.")

    def __getitem__(self, adapter_id: int) -> int:
        """Returns the slot of an adapter that is held; that of NO_ADAPTER is its own number. Raises InputError as
        `check`."""
        self.check(adapter_id)
        return NO_ADAPTER if adapter_id == NO_ADAPTER else self._slots[adapter_id]

    def add(self, adapter_id: int, adapter: Adapter, in_use: Set[int] = frozenset()) -> None:
        """Takes an adapter, onto the device where not all slots are `in_use`. Raises LimitError where there is no room
        for it, or its rank is too high; InputError for one that has no meaning beside these weights."""
        if len(self._adapters) >= self._capacity:
            have = f"there is room for {counted(self._capacity, 'adapter')} at once"
            raise LimitError(
                f"{have}; unload one" if self._capacity else have,
                "start with more max_cpu_loras",
                settings=("max_cpu_loras",),
            )
        if (rank := rank_of(adapter)) > self._max_rank:
            raise LimitError(
                f"there is room for adapters of rank {self._max_rank}, this one has {rank}",
                "start with a higher max_lora_rank",
                settings=("max_lora_rank",),
            )
        self._adapters[adapter_id] = self._beside(adapter)
        try:
            if len(in_use - {NO_ADAPTER}) < self.num_slots:
                self.hold({*in_use, adapter_id})
        except BaseException:
            self.remove(adapter_id)
            raise

    def _beside(self, adapter: Adapter) -> Mapping[str, BankLayers]:
        """Returns what an adapter changes of the networks beside their weights."""
        found = {role: beside_network(network, adapter.get(role, {})) for role, network in self._networks.items()}
        undefined = [f"{role}.{path}" for role, (_, paths) in found.items() for path in paths]
        if not self._minimum(int(not undefined)):  # on all ranks, whichever has such rows
            where = f" ({listed(undefined, 3)})" if undefined else ""
            raise InputError(
                f"the adapter (use_dora) gives lengths to rows of zeros{where}, which have no direction; it was made"
                " for other weights."
            )
        layers = {role: layers for role, (layers, _) in found.items()}
        self._check_values(layers)
        return layers

    def _check_values(self, adapter: Mapping[str, BankLayers]) -> None:
        """Raises InputError, on all ranks, for values that are too large for the type that layers compute in."""
        dtype = self._kind["dtype"]
        fits = all(w.fits(dtype) for layers in adapter.values() for changes in layers.values() for w in changes)
        if not self._minimum(int(fits)):
            name = str(dtype).removeprefix("torch.")
            said = f"the adapter has values that are too large for {name}; run its model with another dtype."
            raise InputError(said, settings=("dtype",))

    def remove(self, adapter_id: int) -> None:
        """Forgets an adapter. No sequence may have it any more."""
        del self._adapters[adapter_id]
        self._slots.pop(adapter_id, None)

    def hold(self, adapter_ids: Set[int]) -> None:
        """Puts adapters on the device where they are not, in place of others than these. Raises LimitError for more
        than there are slots, InputError as `check`."""
        wanted = adapter_ids - {NO_ADAPTER}
        if len(wanted) > self.num_slots:
            raise LimitError(
                f"{counted(len(wanted), 'adapter')} are in use at once, the device has room for {self.num_slots}; ask"
                " again later",
                "start with more max_loras",
                settings=("max_loras",),
            )
        for number in sorted(wanted):
            self.check(number)
            self._slots[number] = self._slots.pop(number) if number in self._slots else self._put(number, wanted)

    def _put(self, number: int, wanted: Set[int]) -> int:
        taken = set(self._slots.values())
        slot = next((each for each in range(self.num_slots) if each not in taken), None)
        if slot is None:
            slot = self._slots.pop(next(each for each in self._slots if each not in wanted))
        adapter = self._adapters[number]
        has_grown = [  # an adapter without a role leaves nothing of what lay there
            put_adapter(network, slot, adapter.get(role, {}), **self._kind) for role, network in self._networks.items()
        ]
        if any(has_grown):
            self.on_growth()
        return slot
