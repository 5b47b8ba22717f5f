"""Files of results: what was measured is shown before it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kits.cli_kit import call, one_sentence
from vlm.errors import InputError
from vlm_app.cli.display.result_file import check_writable, write_result

FULL = Path("/dev/full")  # of Linux: it opens, and has no room
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")


def test_a_full_disk_is_one_sentence():
    check_writable(FULL)
    with pytest.raises(InputError, match=r"^--report /dev/full cannot be written: No space left on device\.$"):
        write_result({"a": 1}, FULL, "--report")


def test_a_measurement_is_not_lost_on_a_full_disk():
    words = "bench text --model mini-t5 --device cpu --no-hf --input-output-len 8,2 --repeats 1 --json /dev/full"
    result = call(*words.split())
    assert "--json /dev/full cannot be written: No space left" in one_sentence(result)
    assert "8 in, 2 out, batch 1" in result.stdout


def test_looking_whether_a_file_can_be_written_leaves_it_as_it_was(tmp_path):
    """A run that fails minutes later leaves no empty file; what a pipe's reader waits for does not end."""
    file, pipe = tmp_path / "new" / "result.json", tmp_path / "pipe"
    check_writable(file)
    assert file.parent.is_dir() and not file.exists()
    file.write_text("{}")
    check_writable(file)
    assert file.read_text() == "{}"
    os.mkfifo(pipe)
    check_writable(pipe)  # opening it would wait for a reader
    with pytest.raises(InputError, match=r"--json .* cannot be written: Is a directory"):
        check_writable(tmp_path)
