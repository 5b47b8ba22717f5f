"""Values and files that nobody would give on purpose: one sentence, no traceback, nothing that ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import vlm
from tests.kits.cli_kit import call, one_sentence
from vlm.build.locate import locate
from vlm.config import RuntimeConfig
from vlm.config.runtime import MAX_THREADS
from vlm.errors import ConfigError, ModelNotFoundError, OutOfMemoryError

pytestmark = pytest.mark.usefixtures("cache_of_module")


@pytest.mark.parametrize("verb", [
    ("run", "--text", "a"), ("generate", "a"), ("summarize", "a"), ("translate", "a"),
    ("bench", "text", "--device", "cpu"),
], ids=lambda verb: verb[0])  # fmt: skip
def test_an_empty_name_is_no_model(verb):
    """It is neither the working directory nor the default."""
    assert "the model's name is empty; give a packaged name" in one_sentence(call(*verb, "--model", ""))


def test_an_empty_name_is_no_model_for_python():
    with pytest.raises(ModelNotFoundError, match="the model's name is empty"):
        locate("")


def test_an_empty_name_is_no_image():
    result = call("run", "--image", "", "--device", "cpu", "--max-new-tokens", 2)
    assert "the image's name is empty; give the path of an image file" in one_sentence(result)


def test_threads_that_no_machine_has():
    """OpenMP would end the process."""
    said = f"it must be at most {MAX_THREADS}"
    with pytest.raises(ConfigError, match=f"threads is 100000, {said}"):
        RuntimeConfig(threads=100_000)
    assert said in one_sentence(call("run", "--text", "a", "--threads", 100_000))
    assert said in one_sentence(call("bench", "text", "--model", "mini-t5", "--threads", 100_000))


def test_a_cache_larger_than_the_memory():
    """On the CPU torch says so with a plain RuntimeError."""
    with pytest.raises(OutOfMemoryError, match="lower max_batch_size, max_seq_len"):
        vlm.load("mini-t5", device="cpu", max_batch_size=2**31 - 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk():
    """In one sentence, and Python says nothing when it flushes at its exit."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "vlm_app.cli.main", "models"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "vlm: the output cannot be written: No space left on device; choose another place" in done.stderr


def test_a_closed_pipe():
    command = f"{sys.executable} -m vlm_app.cli.main models; echo $? >&2"
    done = subprocess.run(["bash", "-c", f"({command}) | true"], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and done.stderr.split()[-1:] == ["0"], done.stderr


@pytest.mark.parametrize(("content", "says"), [
    (None, "cannot be read: Is a directory"), ("", "is no result of"), ("[]", "is no result of"),
    ('{"kind": "text"}', "is no result of"), ("[" * 100_000, "is no result of"),
])  # fmt: skip
def test_what_no_benchmark_wrote(content, says, tmp_path):
    path = tmp_path / "result.json"
    path.mkdir() if content is None else path.write_text(content)
    assert says in one_sentence(call("bench", "table", path))


def test_the_process_of_a_command_ends_once_all_is_written_and_closed(tmp_path):
    """It takes nothing down; what was registered to run at its end has run, and its exit code stands."""
    code = (
        "import atexit, sys, tempfile, vlm_app.cli.main as command\n"
        "def main():\n"
        "    atexit.register(lambda: print('closed'))\n"
        "    globals()['folder'] = tempfile.TemporaryDirectory(dir=sys.argv[1])\n"
        "    print('text', end=' ')\n"
        "    sys.exit(3)\n"
        "class Teardown:\n"
        "    def __del__(self): print('taken down')\n"
        "left, command.main = Teardown(), main\n"
        "command.process()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "text closed\n", "") and not list(tmp_path.iterdir())
