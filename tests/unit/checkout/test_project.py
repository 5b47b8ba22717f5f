"""What the project says about itself in several places is the same everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from tests.checkout import ROOT
from vlm import __version__

SOURCE = ROOT / "vlm" / "__init__.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WRITTEN = ("vlm", "visual_engines", "llm_engines", "app", "docker", "docs", ".github", ".ci")
RECORDS = {ROOT / "docs" / "benchmarks.md"}  # which version was measured


def files() -> list[Path]:
    """Returns the texts of the project that could name a version of it, without records of earlier ones."""
    inside = [file for folder in WRITTEN for file in (ROOT / folder).rglob("*") if file.is_file()]
    texts = [file for file in inside if file.suffix not in {".pyc", ".png", ".pdf", ".safetensors"}]
    return [*texts, ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_version_is_written_once():
    version = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])")
    named = {file for file in files() if version.search(file.read_text("utf-8", errors="replace"))}
    assert named - RECORDS == {SOURCE}
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "vlm.__version__"}


def test_every_folder_of_code_is_in_the_wheel():
    """An editable installation finds those that are not named, too."""
    build, code = PROJECT["tool"]["setuptools"], ("vlm", "visual_engines", "llm_engines", "vlm_app")
    roots = {name: ROOT / build["package-dir"].get(name, name) for name in code}
    folders = {(name, *file.relative_to(at).parts[:-1]) for name, at in roots.items() for file in at.rglob("*.py")}
    assert set(build["packages"]) == set(map(".".join, folders))


def test_the_servers_tell_the_version():
    pytest.importorskip("fastapi", reason="needs the serve extra")
    from vlm_app.server.app import create_app
    from vlm_app.server.core.config import ServerConfig
    from vlm_app.server.kserve.descriptions import server_metadata

    assert server_metadata()["version"] == __version__
    assert create_app({}, ServerConfig()).openapi()["info"]["version"] == __version__


def test_a_changelog_has_an_unreleased_part_and_no_version_of_the_future():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    released = [Version(name) for name in headings[1:]]
    assert headings[0] == "Unreleased" and released == sorted(released, reverse=True)
    assert all(version <= Version(__version__) for version in released)


def test_ci_runs_its_script_with_every_python_that_is_supported():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    job = workflow["jobs"]["run"]
    pythons = job["strategy"]["matrix"]["python"]
    [step] = [step for step in job["steps"] if "run" in step]
    assert step["run"] == ".ci/run" and step["env"] == {"PYTHON": "python${{ matrix.python }}"}
    assert '"${PYTHON:-python3}" -m venv' in (ROOT / ".ci" / "run").read_text("utf-8")
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"
    listed = [name.rsplit(" ", 1)[-1] for name in PROJECT["project"]["classifiers"] if ":: 3." in name]
    assert pythons == listed


def test_hooks_are_tools_of_the_test_extra():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    entries = {hook["entry"].split()[0] for hook in hooks[0]["hooks"]}
    assert entries == {"ruff", "lint-imports", "end-of-file-fixer", "check-added-large-files"}
    tools = " ".join(PROJECT["project"]["optional-dependencies"]["test"])
    assert all(name in tools for name in ("ruff", "import-linter", "pre-commit", "pre-commit-hooks"))
