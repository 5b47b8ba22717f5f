"""URLs as paths, parts of a job, the order of a cluster's news, and devices that end."""

from __future__ import annotations

import itertools
import os
import uuid
from pathlib import Path

import pytest

from tests.unit.ocr.test_ocr import image
from vlm.errors import DocumentError, InputError
from vlm_app.core.storage import digest, file_state, files_below, is_remote, location, remove
from vlm_app.ocr.documents.naming import Document, name_all
from vlm_app.ocr.documents.open_document import OpenDocument
from vlm_app.ocr.documents.sources import Shard, find_documents
from vlm_app.ocr.events import Opened, PageFailed, PageRead, Unreadable
from vlm_app.ocr.ledger.database import LedgerError
from vlm_app.ocr.ledger.snapshots import Snapshots
from vlm_app.ocr.ledger.state import ledger_of
from vlm_app.ocr.placing import write_whole


@pytest.fixture
def memory():
    pytest.importorskip("upath", reason="the extra ocr-cluster is not installed")
    return location(f"memory://{uuid.uuid4().hex}")


def put(path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# --- URLs ---
@pytest.mark.parametrize("name", [b"a.png", b"a b#c?.png", b"caf\xe9.png"], ids=["plain", "encoded", "no UTF-8"])
def test_a_url_of_this_machine_is_a_path(tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    assert location(path.as_uri()) == path and not is_remote(location(path.as_uri()))
    assert location(f"file://{tmp_path}/{os.fsdecode(name.partition(b'#')[0])}").parent == tmp_path


def test_documents_below_a_url_and_their_outputs(memory, tmp_path):
    picture = image(tmp_path / "a.png", 7).read_bytes()
    for name in ("b.png", "sub/c.png", ".hidden/d.png", "sub/.e.png", "notes.txt"):
        put(memory / name, picture)
    assert [str(below) for _, below in files_below(memory)] == [".", ".", "sub"]
    sources = find_documents([str(memory)]).sources
    assert [source.path.name for source in sources] == ["b.png", "c.png"]
    assert [document.names[0] for document in name_all(sources)] == ["b", "sub/c"]
    assert find_documents([str(memory / "b.png"), str(memory)]).sources[0].path == memory / "b.png"


def test_a_remote_document_is_read_from_a_copy_that_goes(memory, tmp_path):
    put(memory / "a.png", image(tmp_path / "a.png", 7).read_bytes())
    document = OpenDocument(memory / "a.png")
    local = document.local
    assert local.exists() and document.render(0).getpixel((0, 0)) == (7, 7, 7)
    assert document.digest == digest(tmp_path / "a.png") == digest(memory / "a.png")
    del document
    assert not local.exists()


def test_errors_name_the_url(memory):
    put(memory / "a.pdf", b"%PDF-1.4 nothing")
    with pytest.raises(DocumentError) as error:
        OpenDocument(memory / "a.pdf")
    assert str(error.value).startswith(f"{memory}/a.pdf is no readable PDF")
    with pytest.raises(DocumentError, match=r"nothing\.pdf cannot be fetched") as error:
        OpenDocument(memory / "nothing.pdf")
    assert error.value.kind == "not fetched"
    with pytest.raises(InputError, match="cannot be reached"):
        file_state(memory / "nothing.pdf")


@pytest.mark.parametrize("there", ["disk", "memory"])
def test_files_that_are_written_are_seen_to_change(there, memory, tmp_path):
    path = tmp_path / "new" / "a.md" if there == "disk" else memory / "a.md"
    write_whole(path, "ä\n", ".draft", replace=False)
    before = file_state(path)
    write_whole(path, "other\n", ".draft", replace=True)
    assert path.read_bytes() == b"other\n" and file_state(path).stamp != before.stamp
    assert [found.name for found in path.parent.iterdir()] == ["a.md"]
    remove(path)
    remove(path)
    assert not path.exists()


def test_the_time_of_a_file(tmp_path):
    path = image(tmp_path / "a.png")
    os.utime(path, (86400, 86400))
    assert file_state(path).modified == "1970-01-02T00:00:00+00:00"


# --- parts ---
def test_parts_are_disjoint_whole_and_stable():
    targets = [Document(Path(f"/in/{i}.pdf"), (str(i),)) for i in range(40)]
    parts = [Shard.parse(f"{i}/3").select(targets) for i in range(3)]
    assert sorted(itertools.chain(*parts), key=targets.index) == targets and all(parts)
    assert [Shard(i, 3).select(targets[::2]) for i in range(3)] == [
        [target for target in part if target in targets[::2]] for part in parts
    ]
    assert len({Shard(i, 3).name for i in range(3)}) == 3


def test_a_ledger_is_closed_whether_its_copy_can_be_kept_or_not(memory, tmp_path, monkeypatch):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))

    def unreachable(copies, ledger):
        raise InputError("the store cannot be written.")

    monkeypatch.setattr(Snapshots, "save", unreachable)
    ledgers = []
    with pytest.raises(InputError, match="the store cannot be written"), ledger_of(memory, {}, False) as ledger:
        ledgers.append(ledger)
    with pytest.raises(LedgerError, match="closed"):
        ledgers[0].get("settings")


# --- news ---
def test_pages_wait_for_their_document():
    from vlm_app.ocr.readers.cluster import _opened_first

    opened = Opened(1, 2, (0, 1), "x")
    page, failed = PageRead(1, 0, "a", "a", "eos", 1), PageFailed(1, 1, "damaged", "b")
    other = Unreadable(2, "damaged", "c")
    assert list(_opened_first([page, other, opened, failed])) == [other, opened, page, failed]


def test_a_device_that_ends_is_one_sentence():
    from multiprocessing import get_context

    from vlm.errors import EngineError
    from vlm_app.ocr.readers.device import Device

    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=print)
    process.start()
    device = Device("cuda:1", process, ours, 4)
    theirs.close()
    with pytest.raises(EngineError, match=r"device cuda:1 has ended \(exit code 0\); run the same command again"):
        device.receive()
    device.stop()
    device.join()
