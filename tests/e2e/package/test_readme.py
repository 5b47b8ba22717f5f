"""The README's commands do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.checkout import ROOT

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    """What stands between two marks, without code fences."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README, re.DOTALL)
    assert found, f"the README has no part {name}"
    return re.sub(r"^```.*\n?", "", found[1], flags=re.MULTILINE).strip()


def test_the_second_command_is_what_ci_runs():
    assert section("test-command") == "pip install -e '.[test]' && pytest"
    assert "test-command" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("verb", ["translate", "summarize", "eval", "encode"])
def test_the_readmes_text_commands_run(verb, tmp_path):
    [line] = [part for part in README.splitlines() if part.startswith(f"vlm {verb} ")]
    arguments = shlex.split(line, comments=True)[1:]
    arguments = [str(tmp_path / "states.npz") if argument == "states.npz" else argument for argument in arguments]
    environment = {**os.environ, "VLM_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "vlm_app.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = {"translate": "Das alte Schiff ist klein.", "summarize": "Event: poetry reading", "eval": "100.00%"}
    assert shown.get(verb, "states.npz") in done.stdout
