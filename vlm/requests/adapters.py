"""Adapters as requests name them: by number."""

from __future__ import annotations

NO_ADAPTER = -1  # the network alone


def adapter_key(adapter_id: int) -> bytes:
    """Returns what keys of contents computed under an adapter begin with: two adapters never share any."""
    return adapter_id.to_bytes(4, "little", signed=True)
