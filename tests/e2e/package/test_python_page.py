"""The examples of docs/python.md print what the page shows."""

from __future__ import annotations

import re

import pytest

from tests.checkout import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What an example may use: what those before it have made, and a folder `out`."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    return {"out": tmp_path}


def test_the_examples_print_what_the_page_shows(names, capsys):
    examples = EXAMPLE.findall(PAGE)
    assert len(examples) == PAGE.count("```python\n") > 5
    for code, shown in examples:
        exec(compile(code, "docs/python.md", "exec"), names)
        assert capsys.readouterr().out == shown
