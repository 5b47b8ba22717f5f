"""OCR jobs whose documents and outputs lie in S3, served by moto on the loopback interface."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

pytest.importorskip("s3fs", reason="the extra ocr-cluster is not installed")
pytest.importorskip("upath", reason="the extra ocr-cluster is not installed")
pytest.importorskip("moto.server", reason="moto is not installed")

from tests.kits.cli_kit import ended
from tests.kits.ocr_jobs import EXAMPLES, SHORT, book, left
from tests.kits.servers.s3_kit import store


@pytest.fixture
def cli(capsys):
    def call(*arguments):
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()  # as a process of its own would
        code, _, err = ended(capsys, "ocr", *arguments)
        print(err)  # shown when a test fails
        return code, err

    return call


def fill(bucket, folder):
    """The same documents here and there."""
    (folder / "sub").mkdir(parents=True)
    book(folder / "a.pdf", 5)
    book(folder / "sub" / "b.pdf", 2, seed=1)
    shutil.copy(EXAMPLES / "page.png", folder / "sub" / "c.png")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    store().put(str(folder), f"{bucket}/in", recursive=True)


def objects(url):
    """Names and contents below a URL, the ledger left out."""
    names = [name for name in store().find(url) if "/.vlm-ocr/" not in name]
    return {name.removeprefix(url.removeprefix("s3://") + "/"): store().cat_file(name) for name in names}


def test_from_s3_to_s3_is_as_from_disk_to_disk(cli, bucket, tmp_path):
    fill(bucket, tmp_path / "in")
    code, err = cli(tmp_path / "in", "-o", tmp_path / "out", *SHORT)
    assert code == 1, err
    code, err = cli(f"{bucket}/in", "-o", f"{bucket}/out", *SHORT)
    assert code == 1 and f"not read: {bucket}/in/broken.pdf: {bucket}/in/broken.pdf is no readable PDF" in err
    assert objects(f"{bucket}/out") == left(tmp_path / "out")
    assert set(left(tmp_path / "out")) == {"a.md", "sub/b.md", "sub/c.md"}
    code, err = cli(f"{bucket}/in", "-o", f"{bucket}/out", *SHORT)
    assert "3 documents skipped" in err and "0 pages" in err


def test_another_machine_goes_on_from_the_copy_of_the_ledger(cli, bucket, tmp_path, monkeypatch):
    fill(bucket, tmp_path / "in")
    assert cli(f"{bucket}/in/a.pdf", "-o", f"{bucket}/out", *SHORT)[0] == 0
    whole = objects(f"{bucket}/out")
    store().rm(f"{bucket}/out/a.md")
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "elsewhere"))
    store().get_file(f"{bucket}/out/.vlm-ocr/ledger.sqlite", str(tmp_path / "copy"))
    rows = sqlite3.connect(tmp_path / "copy").execute("SELECT path, state FROM pages JOIN documents ON id = document")
    assert list(rows) == [(f"{bucket}/in/a.pdf", "done")] * 5
    code, err = cli(f"{bucket}/in/a.pdf", "-o", f"{bucket}/out", *SHORT)
    assert code == 0 and "5 pages had been read before" in err and "1 document, 0 pages" in err
    assert objects(f"{bucket}/out") == whole


def test_copies_are_made_as_pages_come(cli, bucket, tmp_path, monkeypatch):
    """A machine that is lost takes no more with it than what came since the last copy."""
    monkeypatch.setattr("vlm_app.ocr.ledger.snapshots.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr("vlm_app.ocr.ledger.snapshots.SHARE", 1e9)
    monkeypatch.setattr("vlm_app.ocr.outputs.Outputs.write", _lost)
    fill(bucket, tmp_path / "in")
    monkeypatch.setattr("vlm_app.ocr.ledger.state.Snapshots.save", _counted := _Counted())
    assert cli(f"{bucket}/in/a.pdf", "-o", f"{bucket}/out", *SHORT)[0] == 2
    assert _counted.pages == [1, 2, 3, 4, 5, 5]


class _Counted:
    """Stands for the making of a copy; keeps how many pages it would hold."""

    def __init__(self):
        self.pages = []

    def __get__(self, copies, kind):
        return lambda ledger: self.pages.append(len(ledger.attempts(1)))


def _lost(*file):
    from vlm.errors import InputError

    raise InputError("the disk is full.")


def test_objects_are_listed_not_asked_for_one_by_one(cli, bucket, tmp_path, monkeypatch):
    import s3fs

    picture = (EXAMPLES / "page.png").read_bytes()
    for i in range(12):
        store().pipe_file(f"{bucket}/in/{i}.png", picture)
        store().pipe_file(f"{bucket}/out/{i}.md", b"mine")
    asked, call = [], s3fs.S3FileSystem._call_s3

    def counted(self, method, *arguments, **options):
        asked.append(method)
        return call(self, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    code, err = cli(f"{bucket}/in", "-o", f"{bucket}/out", *SHORT, "--workers", "0")
    assert code == 1 and "12 found: 0 written, 12 refused" in err and len(asked) < 12
    assert store().cat_file(f"{bucket}/out/3.md") == b"mine"


def test_a_bucket_that_is_not_there_is_one_sentence(cli, bucket):
    code, err = cli(f"{bucket}-not/in", "-o", f"{bucket}/out", *SHORT)
    assert code == 2 and err.startswith("vlm: s3://") and "does not exist" in err and len(err.splitlines()) == 1
    code, err = cli("nosuch://x/in", "-o", f"{bucket}/out", *SHORT)
    assert code == 2 and "nosuch" in err and len(err.splitlines()) == 1
