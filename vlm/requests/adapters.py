"""Adapters as requests name them: by a name, or by number."""

from __future__ import annotations

from collections.abc import Mapping

from vlm.errors import AdapterNotFoundError, listed

NO_ADAPTER = -1  # the network alone


def adapter_key(adapter_id: int) -> bytes:
    """Returns what keys of contents computed under an adapter begin with: two adapters never share any."""
    return adapter_id.to_bytes(4, "little", signed=True)


def adapter_id(lora: object, numbers: Mapping[str, int]) -> int:
    """Returns the number of the adapter that a request names, by its name or number; -1 is none. Raises
    AdapterNotFoundError for one that is not loaded."""
    if isinstance(lora, str) and lora in numbers:
        return numbers[lora]
    if isinstance(lora, int) and not isinstance(lora, bool) and (lora == NO_ADAPTER or lora in numbers.values()):
        return lora
    loaded = f"{listed(numbers)} is what is loaded" if numbers else "none is loaded"
    raise AdapterNotFoundError(f"there is no adapter {lora!r}: {loaded}")
