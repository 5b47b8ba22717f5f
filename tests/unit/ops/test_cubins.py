"""Compiled kernels on disk."""

from __future__ import annotations

import pytest

from vlm.ops.kernels import gemv, nvrtc
from vlm.ops.kernels.cubins import cached


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refuse() -> bytes:
    raise AssertionError("it was compiled before")


def test_what_was_compiled_is_found_again(cache):
    assert cached("a", lambda: b"code of a") == b"code of a"
    assert cached("a", refuse) == b"code of a"
    assert cached("b", lambda: b"code of b") == b"code of b"
    assert len(list((cache / "kernels").iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 80])
def test_a_damaged_file_is_made_again(cache, damage):
    cached("a", lambda: b"code")
    [file] = (cache / "kernels").iterdir()
    file.write_bytes(damage)
    assert cached("a", lambda: b"code") == b"code"
    assert cached("a", refuse) == b"code"


def test_a_disk_that_takes_nothing_is_no_error(cache):
    cache.write_text("a file where the folder should be")
    assert cached("a", lambda: b"code") == b"code"


def test_what_fails_leaves_nothing(cache):
    with pytest.raises(AssertionError):
        cached("a", refuse)
    assert not list(cache.rglob("*.cubin"))


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
def test_a_later_process_compiles_nothing(cache, monkeypatch):
    shape = gemv.Shape(gemv.INT8, 256, 64, groups=1, gated=False, zero=False, processors=132)
    values = tuple(sorted(gemv.constants(shape, 0, 0, 0, bias=False, norm=(0, 0, -1)).items()))
    nvrtc.compiled.cache_clear()
    code = nvrtc.compiled("gemv.cu", values, "sm_90")
    nvrtc.compiled.cache_clear()  # as a process begins
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("it was compiled before"))
    assert nvrtc.compiled("gemv.cu", values, "sm_90") == code
