"""`vlm ocr` over folders that nobody would make on purpose: each bad thing costs at most itself."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys

import pytest

from tests.kits.cli_kit import ended
from tests.kits.ocr_jobs import EXAMPLES, left

QUICK = ("--device", "cpu", "--max-new-tokens", "3", "--batch-size", "4", "--workers", "0")
PAGE = EXAMPLES / "page.png"


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path_factory):
    """Runs `vlm ocr` in this process -> (exit code, what it said)."""
    monkeypatch.setenv("VLM_CACHE", str(tmp_path_factory.getbasetemp() / "hostile-cache"))

    def call(*arguments):
        code, _, err = ended(capsys, "ocr", *arguments, *QUICK)
        print(err.encode(errors="backslashreplace").decode())  # shown when a test fails
        return code, err

    return call


def put(path, content=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PAGE.read_bytes() if content is None else content)
    return path


def shares(err: str) -> dict[str, int]:
    """What became of the documents; checks that the numbers add up."""
    found, rest = re.search(r"(\d+) found: (.*)", err).groups()
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", rest)}
    assert sum(counts.values()) == int(found)
    return counts


def fill(root):
    """All of it in one folder -> how many documents can be read, how many not."""
    good = [
        "good.png", "x" * 250 + ".png", "y" * 251 + ".png", "x.png", "x.md/y.png", "x.pdf/z.png", "a.png", "a.jpg",
        "a.png.png", "a.partial.png", "A.png", "-rf.png", "dots..png", "new\nline.png",
        "red\x1b[31m.png", "é.png", "e\u0301.png",
        os.fsdecode(b"caf\xe9.png"), os.fsdecode(b"caf\xe9/\xff.png"), "future.png", "past.png",
    ]  # fmt: skip
    for name in good:
        put(root / name)
    shutil.copy(EXAMPLES / "pages.pdf", root / os.fsdecode(b"p\xe9.pdf"))
    os.utime(root / "future.png", (2**34, 2**34))
    os.utime(root / "past.png", (-1, -1))
    put(root / "empty.png", b"")
    put(root / "bad\x1b[2J\n--->.png", b"no image")
    os.mkfifo(root / "pipe.pdf")
    with socket.socket(socket.AF_UNIX) as made:
        cwd = os.getcwd()
        os.chdir(root)
        made.bind("socket.pdf")
        os.chdir(cwd)
    (root / "loop.png").symlink_to("loop.png")
    (root / "nowhere.png").symlink_to("nothing.png")
    (root / "device.png").symlink_to("/dev/zero")
    (root / "again.png").symlink_to("good.png")
    (root / "around").symlink_to("..")
    (root / "itself").symlink_to("itself")
    return len(good) + 1, 7


def test_each_bad_thing_costs_itself(cli, tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    good, bad = fill(root)
    put(tmp_path / "outside.png")
    code, err = cli(root, "-o", out, "--format", "jsonl")
    assert code == 1 and shares(err) == {"written": good, "failed": bad}
    assert "internal error" not in err and "Traceback" not in err and "\x1b" not in err
    assert len(re.findall("^vlm: not read: ", err, re.MULTILINE)) == bad
    for reason in (
        "is no regular file",
        "Too many levels",
        "No such file",
        "is empty",
        r"bad\x1b[2J\n--->.png is no PDF and no image",
    ):
        assert reason in err
    files = left(out)
    assert len(files) == good and not any(name.endswith(".tmp") for name in files)
    assert all(content.count(b"\n") in (1, 3) for content in files.values())
    code, err = cli(root, "-o", out, "--format", "jsonl")
    assert code == 1 and shares(err) == {"written": 0, "skipped": good, "failed": bad} and left(out) == files


@pytest.mark.slow
def test_names_on_a_terminal_that_knows_ascii_alone(cli, tmp_path):
    put(tmp_path / "in" / os.fsdecode(b"caf\xe9\x1b.png"), b"no image")
    put(tmp_path / "in" / "字.png")
    arguments = ["vlm", "ocr", tmp_path / "in", "-o", tmp_path / "out", *QUICK]
    code = "import sys; from vlm_app.cli.main import main; sys.argv = sys.argv[1:]; main()"
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, env=os.environ | ascii_alone, check=False
    )
    assert done.returncode == 1 and b"1 written, 1 failed" in done.stderr and done.stderr.isascii()
    assert b"internal error" not in done.stderr and b"\x1b" not in done.stderr
    assert len(left(tmp_path / "out")) == 1


def test_a_document_that_replaces_another_is_read(cli, tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    first = put(root / "a.png")
    assert cli(root, "-o", out)[0] == 0
    first.rename(root / "a.jpg")
    code, err = cli(root, "-o", out)
    assert code == 0 and shares(err) == {"written": 1} and set(left(out)) == {"a.md", "a.jpg.md"}
    shutil.copy(EXAMPLES / "pages.pdf", root / "a.pdf")
    code, err = cli(root, "-o", out)
    assert code == 0 and shares(err) == {"written": 1, "skipped": 1}
    assert set(left(out)) == {"a.md", "a.jpg.md", "a.pdf.md"}


def test_equal_stems_in_two_runs_are_both_read(cli, tmp_path):
    out = tmp_path / "out"
    for folder in "xy":
        code, err = cli(put(tmp_path / folder / "a.png"), "-o", out)
        assert code == 0 and shares(err) == {"written": 1}
    assert set(left(out)) == {"a.md", "a.png.md"}


def test_files_of_others_are_refused_by_name(cli, tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    put(root / "a.png"), put(root / "b.png"), put(root / "c" / "d.png")
    put(out / "a.md", b"mine"), put(out / "c", b"mine")
    code, err = cli(root, "-o", out)
    assert code == 1 and shares(err) == {"written": 1, "refused": 2}
    assert f"not read: {root / 'a.png'}: {out / 'a.md'} is there, and not known to this job; move it away" in err
    assert f"{out / 'c'} is no folder, so d.md cannot lie below it" in err
    assert (out / "a.md").read_bytes() == b"mine" and set(left(out)) == {"a.md", "b.md", "c"}
    (out / "c").unlink()
    code, err = cli(root, "-o", out, "--recompute")
    assert code == 0 and shares(err) == {"written": 3} and b"mine" not in left(out)["a.md"]


def test_parts_of_a_job_share_a_folder(cli, tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    for name in ("a.png", "a.jpg", "s/a.png", "b.png", "b.jpg", "b.png.png"):
        put(root / name)
    for part in ("0/2", "1/2", "0/2", "1/2"):
        assert cli(root, "-o", out, "--shard", part)[0] == 0
    texts = {name for name in left(out) if name.endswith(".md")}
    assert texts == {"a.png.md", "a.jpg.md", "s/a.md", "b.png.md", "b.jpg.md", "b.png.png.md"}


def test_folders_that_cannot_be_read_are_told_of(cli, tmp_path, monkeypatch):
    root, out, scandir = tmp_path / "in", tmp_path / "out", os.scandir
    put(root / "a.png"), put(root / "closed" / "b.png")

    def guarded(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)  # the superuser reads everything
    code, err = cli(root, "-o", out)
    assert code == 1 and shares(err) == {"written": 1}
    assert f"not read: {root / 'closed'}: Permission denied" in err
    shutil.rmtree(root / "closed")
    assert cli(root, "-o", out)[0] == 0


def test_links_to_folders_are_followed_once(cli, tmp_path):
    root, elsewhere, out = tmp_path / "in", tmp_path / "elsewhere", tmp_path / "out"
    put(root / "a.png"), put(elsewhere / "b.png"), put(elsewhere / "deep" / "c.png")
    (elsewhere / "back").symlink_to(root)
    for name in ("one", "two"):
        (root / name).symlink_to(elsewhere)
    (root / "up").symlink_to(tmp_path)
    assert cli(root, "-o", out)[0] == 0
    assert set(left(out)) == {"a.md", "one/b.md", "one/deep/c.md"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ledger: ledger.write_bytes(b"x" * 9000), "file is not a database; remove it, and add --recompute"),
        (lambda ledger: ledger.write_bytes(ledger.read_bytes()[:5000]), "malformed; remove it, and add --recompute"),
        (lambda ledger: (ledger.unlink(), ledger.mkdir()), "unable to open database file; make its folder writable"),
    ],
)
def test_ledgers_that_are_damaged(cli, tmp_path, change, says):
    out = tmp_path / "out"
    put(tmp_path / "in" / "a.png")
    assert cli(tmp_path / "in", "-o", out)[0] == 0
    before, ledger = left(out), out / ".vlm-ocr" / "ledger.sqlite"
    change(ledger)
    code, err = cli(tmp_path / "in", "-o", out)
    assert code == 2 and says in err and err.count("vlm: ") == 1 and left(out) == before
    shutil.rmtree(ledger) if ledger.is_dir() else ledger.unlink()
    assert cli(tmp_path / "in", "-o", out, "--recompute")[0] == 0 and left(out) == before


def test_a_ledger_that_another_program_holds(cli, tmp_path, monkeypatch):
    out, connect = tmp_path / "out", sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, timeout=0.1, **options))
    put(tmp_path / "in" / "a.png")
    assert cli(tmp_path / "in", "-o", out)[0] == 0
    other = connect(out / ".vlm-ocr" / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    code, err = cli(tmp_path / "in", "-o", out)
    assert code == 2 and "database is locked; close what else has it open" in err
    other.close()
    assert cli(tmp_path / "in", "-o", out)[0] == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_is_full(cli, tmp_path, small_disk):
    root, out = tmp_path / "in", small_disk / "out"
    for i in range(3):
        put(root / f"{i}.png")
    assert cli(root / "0.png", "-o", out)[0] == 0
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    code, err = cli(root, "-o", out)
    assert code == 2 and "internal error" not in err and "make room there" in err
    assert "0.md" in left(out) and not list(out.rglob("*.tmp"))
    ballast.unlink()
    code, err = cli(root, "-o", out)
    assert code == 0 and set(left(out)) == {"0.md", "1.md", "2.md"}
    assert shares(err)["skipped"] >= 1
