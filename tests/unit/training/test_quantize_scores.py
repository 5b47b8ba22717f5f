"""The scores in docs/quantizing.md are those that training/quantized_models.py measured."""

from __future__ import annotations

import json

from tests.checkout import ROOT
from tests.unit.checkout.test_docs import between
from training.quantized_models import METHODS, RESULTS, TASKS, table


def test_the_page_has_the_scores_that_were_measured():
    results = json.loads(RESULTS.read_text("utf-8"))
    assert results.keys() == TASKS.keys()
    assert all(set(each["methods"]) <= set(METHODS) and "dense" in each["methods"] for each in results.values())
    assert between(ROOT / "docs" / "quantizing.md", "scores") == table(results)
