"""The packages that judge texts, which the extra `eval` brings: imported where a check needs them."""

from __future__ import annotations

from typing import Any

from vlm_app.core.packages import library

PACKAGES = {"rapidfuzz.fuzz": "rapidfuzz", "fuzzysearch": "fuzzysearch", "bs4": "beautifulsoup4"}


def eval_library(module: str) -> Any:
    """Returns a module of PACKAGES. Raises InputError where it is not installed."""
    return library(module, PACKAGES[module], extra="eval", verb="vlm eval pages")


def check_installed() -> None:
    """Raises InputError where a package is missing, before a model is loaded."""
    for module in PACKAGES:
        eval_library(module)


def similarity(text: str, other: str) -> float:
    """Returns how alike two texts are, from 0 to 1: 1 - InDel distance / length of both."""
    return eval_library("rapidfuzz.fuzz").ratio(text, other) / 100.0


def best_similarity(text: str, longer: str) -> float:
    """Returns how alike a text and the part of a longer one that comes closest are, from 0 to 1."""
    return eval_library("rapidfuzz.fuzz").partial_ratio(text, longer) / 100.0


def starts_of_matches(text: str, longer: str, max_diffs: int) -> list[int]:
    """Returns where parts of a longer text begin that become `text` by so many edits (Levenshtein) at most."""
    return [match.start for match in eval_library("fuzzysearch").find_near_matches(text, longer, max_l_dist=max_diffs)]
