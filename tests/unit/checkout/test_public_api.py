"""What `vlm` offers: each name is there for callers, for type checkers and on the page that calls it stable."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from contextlib import closing

import pytest

import vlm
from tests.checkout import ROOT
from vlm import errors

SOURCE = ast.parse((ROOT / "vlm" / "__init__.py").read_text("utf-8"))
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
PACKAGES = {"vlm": "vlm", "visual_engines": "visual_engines", "llm_engines": "llm_engines", "vlm_app": "app"}


def imported(body: list[ast.stmt]) -> dict[str, str]:
    """Returns the names of vlm that statements import, and from which module."""
    found = [node for node in body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vlm")]
    return {alias.name: node.module or "" for node in found for alias in node.names}


def test_type_checkers_see_what_callers_get():
    [typed] = [node.body for node in SOURCE.body if isinstance(node, ast.If)]
    assert imported(typed) == vlm._LAZY
    assert {*imported(SOURCE.body), *imported(typed), "__version__"} == set(vlm.__all__)
    assert len(vlm.__all__) == len(set(vlm.__all__))


@pytest.mark.parametrize(("name", "module"), vlm._LAZY.items())
def test_names_are_loaded_when_they_are_used(name, module):
    assert getattr(vlm, name) is getattr(importlib.import_module(module), name)


def test_names_are_listed_before_they_are_used():
    """`help(vlm)` and completion list them."""
    code = "import sys, vlm; assert {*vlm.__all__} <= {*dir(vlm)} and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_error_is_public():
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert kinds <= set(vlm.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vlm' has no attribute 'nothing'"):
        _ = vlm.nothing


def test_a_path_that_is_empty_is_not_the_folder_that_a_program_runs_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(vlm.load("mini-t5", device="cpu", encoder_only=True)) as model:
        asked = {
            "out": [lambda: vlm.convert_model("mini-t5", ""), lambda: vlm.build_model("mini-t5", "")],
            "merge_lora": [lambda: vlm.convert_model("mini-t5", "x", merge_lora="")],
            "folder": [lambda: model.load_lora("legal", "")],
        }
        for setting, call in ((setting, call) for setting, calls in asked.items() for call in calls):
            with pytest.raises(vlm.InputError) as error:
                call()
            assert str(error.value) == f"{setting} is empty; name a file or a folder (. is this one)."
    assert tmp_path.is_dir() and not [*tmp_path.iterdir()]


def test_the_page_lists_every_public_name_and_no_other():
    [table] = re.findall(r"<!-- public -->\n(.*?)\n<!-- /public -->", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", table)) == set(vlm.__all__)


@pytest.mark.parametrize(("package", "folder"), PACKAGES.items())
def test_types_ship(package, folder):
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    assert (ROOT / folder / "py.typed").is_file() and "py.typed" in data[package]
