"""Python's collector of cyclic garbage: to go through a loaded torch takes it 0.2 s, in which no request is served."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from vlm.garbage import without_collections

_lock = Lock()
_usual: list[tuple[int, int, int]] = []  # what held before each `rarely` that has not ended


def exempt() -> None:
    """Exempts all that there is now from collections to come."""
    gc.freeze()


@contextmanager
def importing() -> Iterator[None]:
    """Collects nothing during imports, and exempts what they have made: with torch those are 300,000 objects, which
    stay."""
    with without_collections():
        yield
        gc.freeze()


@contextmanager
def rarely() -> Iterator[None]:
    """Begins a hundredth of the collections while a model is loaded: they would take an eighth of the time of the
    imports in it, whose objects stay. What else a build leaves behind is collected all the same."""
    with _lock:
        usual = _usual[0] if _usual else gc.get_threshold()  # models may be loaded at the same time
        _usual.append(usual)
        gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        with _lock:
            _usual.pop()
            if not _usual:
                gc.set_threshold(*usual)


def collect() -> None:
    """Collects all that nothing refers to, what was exempt too."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
