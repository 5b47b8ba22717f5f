"""Packages outside of the tree add families: networks, processors, chat formats and parity, all in their folders.

docs/examples/vlm-gpt-neox is what docs/adding-a-model.md builds; docs/examples/vlm-deepseek-vl reads images, too. They
are found as installed packages are, by the entry points in their metadata, and their own tests run here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys

import pytest
from setuptools import build_meta

from tests.checkout import ROOT
from vlm.errors import VlmError
from vlm.registry import catalogs

EXAMPLES = ROOT / "docs" / "examples"
FOLDER = EXAMPLES / "vlm-gpt-neox"
ADDED = {"vlm-gpt-neox": {"pythia", "dolly"}, "vlm-deepseek-vl": {"deepseek-vl"}}  # families by package
CONFIGS = {"pythia": {"model_type": "gpt_neox"}, "deepseek-vl": {"model_type": "deepseek_vl"}}


def _forget() -> None:
    """What was found of installed packages is looked for again."""
    catalogs.installed.cache_clear()
    catalogs.model_spec.cache_clear()


@pytest.fixture(scope="module", params=ADDED)
def site(request, tmp_path_factory):
    """A folder with a package, and beside it the dist-info that an installer writes of its pyproject.toml."""
    site, before = tmp_path_factory.mktemp("site") / request.param, os.getcwd()
    shutil.copytree(EXAMPLES / request.param, site)
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
    name = site.name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(f"{name}_tests", site / "tests" / "test_parity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    monkeypatch.undo()
    for imported in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[imported]
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


def test_it_is_found_while_it_is_installed(package, site):
    added = ADDED[site.name]
    assert added <= catalogs.families().keys()
    for name in added & CONFIGS.keys():
        assert catalogs.match_family(CONFIGS[name]).name == name
    if "pythia" in added:
        assert catalogs.architecture("pythia-160m")[0].name == "pythia"


def test_it_is_gone_with_its_folder():
    assert not set().union(*ADDED.values()) & catalogs.families().keys()
    for config in CONFIGS.values():
        with pytest.raises(VlmError, match=r"is not supported|is no family here"):
            catalogs.match_family(config)


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
