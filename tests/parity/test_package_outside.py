"""A package outside of the tree adds families: network, chat format, post-processing and parity, all in its folder.

docs/examples/vlm-gpt-neox is what docs/adding-a-model.md builds. It is found as an installed package is, by the entry
point in its metadata, and its own tests run here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from setuptools import build_meta

from vlm.registry import catalogs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples" / "vlm-gpt-neox"


def _forget() -> None:
    """What was found of installed packages is looked for again."""
    catalogs.installed.cache_clear()
    catalogs.model_spec.cache_clear()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package, and beside it the dist-info that an installer writes of its pyproject.toml."""
    site, before = tmp_path_factory.mktemp("site") / "packages", os.getcwd()
    shutil.copytree(FOLDER, site)
    os.chdir(site)
    try:
        name = build_meta.prepare_metadata_for_build_wheel(str(site))
    finally:
        os.chdir(before)
    assert "[vlm.catalogs]" in (site / name / "entry_points.txt").read_text()
    return site


@pytest.fixture
def package(site, monkeypatch):
    """The package's tests as a module, while it is installed."""
    monkeypatch.syspath_prepend(str(site))
    _forget()
    spec = importlib.util.spec_from_file_location("vlm_gpt_neox_tests", site / "tests" / "test_parity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    monkeypatch.undo()
    for name in [name for name in sys.modules if name.startswith("vlm_gpt_neox")]:
        del sys.modules[name]
    _forget()


def _cases(module):
    """(test, arguments) of a module's tests."""
    for name, test in vars(module).items():
        if name.startswith("test_"):
            marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
            names, values = marks[0] if marks else ("", [None])
            yield from ((test, {names: value} if names else {}) for value in values)


def test_its_own_tests_pass(package, tmp_path):
    cases = list(_cases(package))
    assert len(cases) == 4
    for number, (test, arguments) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        test(**arguments, tmp_path=folder)


def test_it_is_found_while_it_is_installed(package):
    assert {"pythia", "dolly"} <= catalogs.families().keys()
    assert catalogs.architecture("pythia-160m")[0].name == "pythia"
    assert catalogs.match_family({"model_type": "gpt_neox"}).name == "pythia"


def test_it_is_gone_with_its_folder():
    assert not {"pythia", "dolly"} & catalogs.families().keys()


def test_the_page_shows_the_packages_files():
    """All of each file, in parts or as a whole, and nothing else."""
    page = (ROOT / "docs" / "adding-a-model.md").read_text("utf-8")
    shown: dict[str, list[str]] = {}
    for name, code in re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)\n```", page, re.DOTALL):
        shown.setdefault(name, []).append(code)
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    files = {name: path for name, path in files.items() if "__" not in name}
    assert shown.keys() == files.keys()
    for name, parts in shown.items():
        assert _squeezed("\n".join(parts)) == _squeezed(files[name].read_text("utf-8")), name


def _squeezed(code: str) -> str:
    """Returns code without its blank lines."""
    return re.sub(r"\n\s*\n", "\n", code).strip()
