"""Verbs whose packages are not installed say so at once: nothing is converted before."""

from __future__ import annotations

import sys

import pytest

from tests.kits.cli_kit import call

ABSENT = {
    "export-triton": (("google", "google.protobuf", "tritonclient", "tritonclient.grpc"), "vlm-runtime[triton]"),
    "build": (("onnx", "onnxscript", "onnxruntime"), "vlm-runtime[onnx]"),
}


@pytest.mark.parametrize("verb", ABSENT)
def test_what_is_missing_is_one_sentence(verb, monkeypatch, tmp_path):
    packages, extra = ABSENT[verb]
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name in packages else name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    more = ("--backend", "onnxruntime") if verb == "build" else ()
    result = call(verb, "mini-t5", "-o", tmp_path / "out", *more)
    assert result.exit_code == 2 and f"pip install '{extra}'" in result.stderr
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("vlm: ")
    assert not (tmp_path / "out").exists() and not (tmp_path / "cache").exists()
