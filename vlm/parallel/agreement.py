"""What all ranks must have in common, or their tokens would differ and they would wait for each other for ever."""

from __future__ import annotations

from collections.abc import Mapping

from vlm.errors import EngineError, listed
from vlm.parallel.collectives import Hosts


def check_agreement(hosts: Hosts, own: Mapping[str, str]) -> None:
    """Compares what this process has, by its names, with what the first one has. Raises EngineError on all ranks where
    one of them has something else."""
    first = hosts.broadcast(own)
    if hosts.minimum(own == first):
        return
    others = [f"{name} is {own[name]}, the first rank's {first[name]}" for name in own if own[name] != first[name]]
    what = listed(others) if others else "another rank has something else than the first one, as it says itself"
    raise EngineError(f"ranks must be alike: {what}; install the same versions and give all the same engine.")
