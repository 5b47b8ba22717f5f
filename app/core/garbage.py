"""Python's collector of cyclic garbage: to go through a loaded torch takes it 0.2 s, in which no request is served."""

from __future__ import annotations

import gc


def exempt() -> None:
    """Exempts all that there is now from collections to come."""
    gc.freeze()


def collect() -> None:
    """Collects all that nothing refers to, what was exempt too."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
