"""Which families have cases of parity: those that a test of parity is parametrized with, and no others."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.checkout import ROOT
from vlm.registry import catalogs

SLOW = pytest.mark.slow
CASES: dict[str, set[str]] = {}  # family -> the names of its cases


class Case(NamedTuple):
    """What a test of parity compares: `make` is what the test makes its reference model of."""

    family: str
    make: Any


def parity(cases: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Takes cases by family and name -> the parameters of a test or fixture, and counts them as the families' cases.

    The test asserts that the model it converts is of `case.family`.
    """
    for family, named in cases.items():
        CASES.setdefault(family, set()).update(named)
    return [
        pytest.param(Case(family, make), id=name) for family, named in cases.items() for name, make in named.items()
    ]


def flat(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns cases by name, whatever their family."""
    return {name: make for named in cases.values() for name, make in named.items()}


def mostly_slow(cases: Mapping[str, Any], quick: Collection[str]) -> list[Any]:
    """Takes cases by name -> the parameters of a test: those of `quick` are in the default run, the others, which go
    the same ways, in the long one."""
    return [pytest.param(case, id=name, marks=() if name in quick else SLOW) for name, case in cases.items()]


def combined(names: Iterable[str], values: Mapping[str, Any], always: Collection[str], quick: Collection[str]) -> list:
    """Returns the parameters of a test that is given each name with each value: the default run has those values that
    are `always` tried, and all of the names that are `quick`."""
    return [
        pytest.param(name, value, id=f"{name}-{key}", marks=() if key in always or name in quick else SLOW)
        for name in names
        for key, value in values.items()
    ]


def families_without_case() -> list[str]:
    """Returns the registered families that no test of parity is parametrized with."""
    for module in sorted(Path(__file__).parent.rglob("test_*.py")):
        importlib.import_module(".".join(module.relative_to(ROOT).with_suffix("").parts))
    return sorted(set(catalogs.families()) - {family for family, named in CASES.items() if named})
