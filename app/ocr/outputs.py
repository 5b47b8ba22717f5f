"""The files of a job in its output folder: which are its own stands in the ledger, all others belong to the user."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vlm.errors import DocumentError, InputError
from vlm_app.core.storage import Presence, is_remote, remove
from vlm_app.ocr.documents.naming import FORMATS, PARTIAL
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.placing import check_same, write_whole

OCCUPIED = "occupied"  # the kind of a document whose output's place another file has
# what is wrong with the whole folder, not with one name in it
ENDS_THE_JOB = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class Outputs:
    """One file a document, called by the name that the ledger has for it."""

    def __init__(self, folder: Path, format: str, ledger: Ledger, part: str = ""):
        self._folder, self.format, self._ledger = folder, format, ledger
        self._draft = f".vlm-ocr{part}.tmp"  # one file is written at a time, and one job at a time writes as `part`
        self._present = Presence()

    def file(self, name: str) -> str:
        return f"{name}.{self.format}"

    def path(self, file: str) -> Path:
        return self._folder.joinpath(*PurePosixPath(file).parts)

    def is_current(self, document: int, name: str, selection: str) -> bool:
        """Says whether the output is there and holds these pages as they were read last."""
        file = self.file(name)
        return self._ledger.file(file) == (document, selection) and self._present(self.path(file))

    def is_of_sibling(self, source: str, stamp: str, selection: str) -> bool:
        """Has a job beside this one written the document (its key) as it is now?"""
        outputs = self._ledger.siblings.outputs(source, stamp).items()
        return any(
            holds == selection and file.endswith(f".{self.format}") and self._present(self.path(file))
            for file, holds in outputs
        )

    def can_be(self, name: str) -> bool:
        """Says whether a file can be called so. DocumentError where what should be a folder of it is a file."""
        path = self.path(self.file(name))
        if not is_remote(path):
            _check_folders(path)
        return is_remote(path) or not path.is_dir()

    def check_free(self, name: str) -> None:
        """Raises DocumentError for a file that this job knows nothing of."""
        if self._is_unknown(file := self.file(name)):
            raise DocumentError(
                f"{self.path(file)} is there, and not known to this job; move it away, give another --out, or"
                " --recompute to write over it.",
                OCCUPIED,
            )

    def take_over(self, document: int, name: str) -> None:
        """Makes a file that is there, and unknown, the document's own."""
        if self._is_unknown(file := self.file(name)):
            self._ledger.put_file(file, document, None)

    def _is_unknown(self, file: str) -> bool:
        return self._ledger.file(file) is None and self._present(self.path(file))

    def write(self, document: int, name: str, text: str, selection: str) -> None:
        """Writes a finished document, and removes what an interrupted run left of it.

        Raises DocumentError for what concerns this file alone, else InputError.
        """
        self._put(document, self.file(name), text, selection)
        for format in FORMATS:
            self._remove(document, f"{name}{PARTIAL}.{format}")

    def write_partial(self, document: int, name: str, text: str) -> Path:
        """Writes the finished pages of an interrupted document. Raises as `write` does."""
        file = self.file(name + PARTIAL)
        self._put(document, file, text, None)
        return self.path(file)

    def sweep(self) -> None:
        """Removes what a run left that was killed while it wrote a file."""
        if not is_remote(self._folder):
            for path in self._leftovers():
                with contextlib.suppress(InputError):  # it is in nobody's way
                    remove(path)

    def _leftovers(self) -> Iterator[Path]:
        for folder in {self._folder, *(self.path(name).parent for name in self._ledger.names())}:
            yield folder / self._draft
        if self._ledger.is_old:  # earlier versions called such files `.a.md.tmp`
            for format in FORMATS:
                yield from self._folder.rglob(f".*.{format}.tmp")

    def _put(self, document: int, file: str, text: str, selection: str | None) -> None:
        path, record = self.path(file), self._ledger.file(file)
        is_own = record is not None and record[0] == document
        try:
            if is_remote(path) and not is_own and self._present(path):
                check_same(path, text)
            write_whole(path, text, self._draft, replace=is_own)
        except OSError as error:
            raise _not_written(path, error) from error
        self._ledger.put_file(file, document, selection)

    def _remove(self, document: int, file: str) -> None:
        record = self._ledger.file(file)
        if record and record[0] == document:
            remove(self.path(file))
            self._ledger.drop_file(file)


def _check_folders(path: Path) -> None:
    for folder in path.parents:
        if folder.is_dir():
            return
        if folder.exists() or folder.is_symlink():
            raise DocumentError(
                f"{folder} is no folder, so {path.name} cannot lie below it; move it away or give another --out.",
                OCCUPIED,
            )


def _not_written(path: Path, error: OSError) -> InputError:
    reason = f"{error.filename or path} cannot be written: {error.strerror or error}"
    if error.errno in ENDS_THE_JOB:
        return InputError(f"{reason}; make room there or give another --out, and run the same command again.")
    if isinstance(error, FileExistsError | IsADirectoryError | NotADirectoryError):
        return DocumentError(f"{reason}; move away what is there, or give another --out.", OCCUPIED)
    return DocumentError(f"{reason}; give another --out.", "not written")
