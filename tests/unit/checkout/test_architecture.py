"""docs/architecture.md names modules and functions that are there, and the floors that lint-imports keeps."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.checkout import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGES = {"vlm_app": "app", "visual_engines": "visual_engines", "llm_engines": "llm_engines"}
FOLDERS = sorted(folder.name for folder in (ROOT / "vlm").iterdir() if (folder / "__init__.py").is_file())
NAME = re.compile(rf"`((?:{'|'.join([*PACKAGES, *FOLDERS])})\.(?!py`)[\w.]+)`")
FOLDER_ROW = re.compile(r"^\| (`[\w/]+/`(?:, `[\w/]+/`)*) \| (.*) \|$", re.MULTILINE)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def is_there(name: str) -> bool:
    """Says whether a module, or a name that is defined in one, stands where a dotted name says."""
    first, *rest = name.split(".")
    place = ROOT / PACKAGES[first] if first in PACKAGES else ROOT / "vlm" / first
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    file = place / f"{rest[0]}.py" if rest else place / "__init__.py"
    return file.is_file() and _defines(tree(file).body, rest[1:])


def _defines(body: list[ast.stmt], names: list[str]) -> bool:
    if not names:
        return True
    found = [node for node in body if getattr(node, "name", None) == names[0]]
    return any(_defines(getattr(node, "body", []), names[1:]) for node in found)


def test_every_name_of_the_page_is_there():
    names = NAME.findall(PAGE)
    assert len(names) > 100
    assert not [name for name in names if not is_there(name)]


@pytest.mark.parametrize(
    "name", ["engine.gone", "engine.llm_engine.Gone", "engine.llm_engine.LLMEngine.gone", "gone", "vlm_app.cli.gone.x"]
)
def test_what_is_not_there_is_found(name):
    assert not is_there(name)


def test_every_file_of_the_table_is_in_its_folder():
    rows = FOLDER_ROW.findall(PAGE)
    assert len(rows) > 10
    for folders, words in rows:
        for folder in re.findall(r"`([\w/]+/)`", folders):
            files = re.findall(r"`([\w/]+(?:\.py|/))`", words)
            assert not [file for file in files if not (ROOT / folder / file).exists()], folder


def test_every_folder_is_in_the_table():
    named = set(re.findall(r"`([\w/]+/)`", " ".join(folders for folders, _ in FOLDER_ROW.findall(PAGE))))
    assert named == {*(f"vlm/{name}/" for name in FOLDERS), "llm_engines/", "visual_engines/", "app/"}


def test_the_picture_has_the_contracts_floors():
    [drawn] = re.findall(r"<!-- floors -->\n```text\n(.*?)```\n<!-- /floors -->", PAGE, re.DOTALL)
    [contract] = [each for each in CONTRACTS if each.get("containers") == ["vlm"]]
    assert re.findall(r"^  (\w+) ", drawn, re.MULTILINE) == contract["layers"]
