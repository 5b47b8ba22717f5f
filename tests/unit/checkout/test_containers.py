"""The Dockerfiles copy what the package is made of, and install extras that it has."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.checkout import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("file", sorted((ROOT / "docker").iterdir()), ids=lambda file: file.stem)
def test_what_a_dockerfile_names_is_there(file):
    text = file.read_text()
    copied = {name for line in re.findall(r"^COPY (.+)$", text, re.M) for name in line.split()[:-1]}
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    packages = {name.split(".")[0] for name in PROJECT["tool"]["setuptools"]["packages"]}
    assert copied == {folders.get(name, name) for name in packages} | {"pyproject.toml", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in copied)
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert let_in == copied
    [extras] = re.findall(r"pip install .*'\.\[(.+?)\]'", text)
    assert set(extras.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()
