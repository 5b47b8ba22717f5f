"""The ledger of a job that writes to a URL: SQLite works on this machine, copies of it lie with the outputs.

A run on the machine of the last one goes on after the last page; on another machine after the last copy.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.errors import InputError
from vlm_app.core.storage import key, reaching
from vlm_app.ocr.ledger.ledger import Ledger

if TYPE_CHECKING:
    from vlm_app.core.storage import RemotePath

SECONDS_BETWEEN = 30.0
SHARE = 0.05  # of the time may go into copies


def working_folder(out: Path) -> Path:
    """Returns where the ledger of a URL is worked on."""
    from vlm.artifacts.cache import cache_root

    return cache_root() / "ocr" / hashlib.sha256(str(out).encode()).hexdigest()[:16]


class Snapshots:
    """Brings a ledger from its URL, and copies there as pages come."""

    def __init__(self, local: Path, remote: RemotePath):
        self._local, self._remote, self._root = local, remote, key(remote.parent.parent)
        self._due = time.monotonic() + SECONDS_BETWEEN

    def fetch(self) -> None:
        """Puts the copy in place, unless this machine has what it was made from."""
        with reaching(self._remote):
            if not self._remote.exists():
                return
            self._local.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._local.parent) as folder:
                copy = Path(folder, "copy")
                self._remote.fs.get_file(self._remote.path, str(copy))
                if not self._goes_on_from(copy):
                    for leftover in self._local.parent.glob(f"{self._local.name}-*"):  # SQLite's own
                        leftover.unlink()
                    copy.replace(self._local)

    def save_in_time(self, ledger: Ledger) -> None:
        """Makes a copy now and then."""
        if time.monotonic() >= self._due:
            self.save(ledger)

    def save(self, ledger: Ledger) -> None:
        start = time.monotonic()
        ledger.put({"job": ledger.get("job") or uuid.uuid4().hex, "copies": (ledger.get("copies") or 0) + 1})
        with tempfile.TemporaryDirectory(dir=self._local.parent) as folder, reaching(self._remote):
            copy = Path(folder, "copy")
            ledger.save_as(copy)
            self._remote.fs.put_file(str(copy), self._remote.path)
        took = time.monotonic() - start
        self._due = time.monotonic() + max(SECONDS_BETWEEN, took / SHARE)

    def _goes_on_from(self, copy: Path) -> bool:
        """Says whether the ledger here is the one that was copied, or what became of it."""
        if not self._local.exists():
            return False
        (job, copies), (other_job, other_copies) = _mark(self._local, self._root), _mark(copy, self._root)
        return job == other_job and copies >= other_copies


def _mark(path: Path, root: str) -> tuple[str | None, int]:
    try:
        ledger = Ledger(path, root)
    except InputError:
        return None, 0
    try:
        return ledger.get("job"), ledger.get("copies") or 0
    finally:
        ledger.close()
