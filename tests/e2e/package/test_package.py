"""What pip installs: complete, and not broken by what users have beside it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import vlm
from tests.checkout import ROOT
from tests.e2e.package.test_readme import section

pytest.importorskip("setuptools", reason="building a package offline needs setuptools")

PACKAGES = {"vlm": "vlm", "visual_engines": "visual_engines", "llm_engines": "llm_engines", "app": "vlm_app"}
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
USERS_OWN = "raise ImportError('this is the user\\'s own app')\n"


def make_wheel(source: Path, out: Path) -> Path:
    (out / "build.cfg").write_text(f"[build]\nbuild_base = {out / 'build'}\n")  # not among what an older build left
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(out / "build.cfg")}
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", out, source], env=environment, check=True)
    [wheel] = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return make_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Where the wheel is installed by itself."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run([*PIP, "install", "--no-deps", "--no-compile", "--target", site, wheel], check=True)
    return site


@pytest.fixture
def vlm_command(installed, tmp_path):
    """Runs the installed `vlm` in a folder with an `app.py`, an `app/` on PYTHONPATH before all else."""
    folder, path = tmp_path / "work", tmp_path / "path"
    (path / "app").mkdir(parents=True)
    (path / "app" / "__init__.py").write_text(USERS_OWN)
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "app.py").write_text(USERS_OWN)
    environment = {
        **os.environ, "VLM_CACHE": str(tmp_path / "cache"), "PYTHONPATH": f"{path}{os.pathsep}{installed}",
    }  # fmt: skip

    def run(*arguments: str) -> str:
        command = [sys.executable, installed / "bin" / "vlm", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_holds_every_module_and_model(wheel):
    names = names_in(wheel)
    for folder, package in PACKAGES.items():
        for file in (ROOT / folder).rglob("*.py"):
            assert f"{package}/{file.relative_to(ROOT / folder).as_posix()}" in names
        assert f"{package}/py.typed" in names
    for file in (ROOT / "vlm" / "assets").rglob("*"):
        assert not file.is_file() or file.relative_to(ROOT).as_posix() in names
    for file in (ROOT / "examples").iterdir():
        assert f"vlm_app/demo/examples/{file.name}" in names
    assert {name.partition("/")[0] for name in names} == {
        *PACKAGES.values(),
        f"vlm_runtime-{vlm.__version__}.dist-info",
    }


def test_there_is_one_version():
    assert version("vlm-runtime") == vlm.__version__


def test_the_first_command_prints_what_the_readme_shows(vlm_command):
    install, _, run = section("run-command").partition(" && ")
    assert install == "pip install ."
    verb, *arguments = shlex.split(run)
    assert verb == "vlm"
    printed = vlm_command(*arguments).strip()
    assert printed == section("run-output")
    assert printed == (ROOT / "examples" / "page.txt").read_text().strip()


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--workers", "1"), ("--devices", "cpu,cpu"), ("--ray",)])
def test_worker_processes_find_our_app(vlm_command, options, tmp_path):
    if options == ("--ray",):
        pytest.importorskip("ray", reason="needs the ocr-cluster extra")
    vlm_command("ocr", "examples/page.png", "-o", str(tmp_path / "out"), "--device", "cpu", *options)
    assert (tmp_path / "out" / "page.md").read_text().startswith("# Harbour notes")


@pytest.mark.slow
def test_a_source_archive_makes_the_same_wheel(wheel, tmp_path):
    checkout = tmp_path / "checkout"
    rest = shutil.ignore_patterns(".*", "tests", "training", "benchmarks", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, checkout, ignore=rest, symlinks=True)
    shutil.rmtree(checkout / "build", ignore_errors=True)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    [source] = (tmp_path / "unpacked").iterdir()
    (tmp_path / "again").mkdir()
    assert names_in(make_wheel(source, tmp_path / "again")) == names_in(wheel)
