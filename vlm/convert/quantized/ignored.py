"""Layers that stay dense -> `ignore` of a compressed-tensors configuration.

Each program names a model's modules in its own way: a checkpoint's language_model.model.layers.0 is
model.language_model.layers.0 in transformers. What they share are the parts between the dots, so patterns say these.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

HEADS = ("lm_head", "output_projection")  # whose weights a folder may lack: they are the embedding's
COMMON = "model"  # of what is inside of many modules


def ignore_patterns(dense: Iterable[str], quantized: Iterable[str]) -> list[str]:
    """Returns sorted patterns, `re:` in front, that match the dense modules and all inside of them, whatever precedes
    their names, and no quantized module; a module's own name where no pattern tells it from the quantized ones."""
    kept = sorted(set(quantized))
    inner = {name[:end] for name in kept for end in _ends(name)}  # modules with a quantized one inside
    heads = {head for head in HEADS if not any(head in name.split(".") for name in kept)}

    @functools.cache
    def pattern_of(module: str) -> str | None:
        return next((p for p in _candidates(module) if not any(re.match(p, name) for name in kept)), None)

    found = set()
    for name in {*dense, *heads} - inner:
        modules = (name[:end] for end in _ends(name) if name[:end] not in inner)
        pattern = next(filter(None, map(pattern_of, modules)), None)
        found.add(name if pattern is None else f"re:{pattern}")
    return sorted(found)


def _ends(name: str) -> Iterator[int]:
    """Yields where the names of the modules around one, and its own, end in its name, the outermost first."""
    yield from (place.start() for place in re.finditer(r"\.", name))
    yield len(name)


def _candidates(name: str) -> Iterator[str]:
    """Yields patterns of a module, the shortest first: its last parts, alone and somewhere inside of an outer one. None
    begins with a layer's number or a name that tells little."""
    parts = name.split(".")
    telling = [place for place, part in enumerate(parts) if not part.isdigit() and part != COMMON]
    for start in reversed(telling):
        last = re.escape(".".join(parts[start:]))
        for outer in ("", *(rf"{re.escape(parts[place])}\.(.*\.)?" for place in telling if place < start)):
            yield rf"(.*\.)?{outer}{last}(\..*)?$"
