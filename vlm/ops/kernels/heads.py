"""How many heads a program has of a kernel that does the same with each."""

from __future__ import annotations

FEW = 4096  # heads of all rows, of which each has a program to itself: more keep every processor busy as it is
EACH, WARPS = 16, 2


def heads_each(count: int) -> tuple[int, int]:
    """Returns how many of so many heads a program has, and its warps."""
    return (1, 1) if count <= FEW else (EACH, WARPS)
