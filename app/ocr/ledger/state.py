"""A job's state in its output folder: the ledger, held by one run at a time, and what the job was begun with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from vlm.errors import InputError
from vlm_app.core.storage import is_remote, key
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.ledger.snapshots import Snapshots, working_folder

KEPT_AS_HASHES = ("model", "adapter")  # settings whose values are not those of their options
CHANGE_THE_FILES = {"backend", "dtype"}  # settings by which the hash of the same model is another
FOLDER = ".vlm-ocr"  # in the output folder; hidden, so that nobody takes it for a text


@contextlib.contextmanager
def ledger_of(out: Path, settings: Mapping[str, object], recompute: bool, part: str = "") -> Iterator[Ledger]:
    """Opens the ledger of the job that writes to `out`, for the time of a run. `part` names one of several that share
    it.

    Raises InputError when another run has it, and for other `settings` than it was begun with, unless all is to be
    read again.
    """
    name = f"ledger{part}.sqlite"
    folder = working_folder(out) if is_remote(out) else out / FOLDER
    with _locked(folder, name, out):
        copies = Snapshots(folder / name, out / FOLDER / name) if is_remote(out) else None
        with _opened(folder / name, key(out), copies) as ledger:
            _agree(ledger, settings, recompute, out)
            yield ledger


@contextlib.contextmanager
def _opened(path: Path, root: str, copies: Snapshots | None) -> Iterator[Ledger]:
    if copies:
        copies.fetch()
    with contextlib.closing(Ledger(path, root)) as ledger:
        if copies is None:
            yield ledger
            return
        ledger.after_page = lambda: copies.save_in_time(ledger)
        try:
            yield ledger
        finally:
            copies.save(ledger)


@contextlib.contextmanager
def _locked(folder: Path, name: str, out: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"another run is writing to {out}; wait for its end, or give another --out.") from None
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}.") from None
    with lock:
        lock.release()  # `with` has taken it a second time
        yield


def _agree(ledger: Ledger, settings: Mapping[str, object], recompute: bool, out: Path) -> None:
    """Raises InputError for other settings: texts of two models, or of two lengths, never stand in one folder
    unnoticed."""
    begun = ledger.get("settings")
    if begun is not None and begun != settings:
        if not recompute:
            raise _other_settings(begun, settings, out)
        ledger.clear()
    if begun != settings:
        today = datetime.now(UTC).date().isoformat()
        ledger.put({"settings": dict(settings), "added": today, "model": settings.get("model")})


def _other_settings(begun: Mapping[str, object], settings: Mapping[str, object], out: Path) -> InputError:
    others = [name for name in {**begun, **settings} if begun.get(name) != settings.get(name)]
    if CHANGE_THE_FILES & set(others):
        others = [name for name in others if name != "model"]
    was, now = (", ".join(_told(name, values.get(name)) for name in others) for values in (begun, settings))
    return InputError(
        f"{out} was begun with {was}, now asked is {now}; ask for the same, give another --out, or --recompute to read"
        " all again.",
        settings=tuple(name for name in others if name not in KEPT_AS_HASHES),
    )


def _told(name: str, value: object) -> str:
    shown = name if name in KEPT_AS_HASHES else f"`{name}`"
    return f"no {shown}" if value is None else shown if value is True else f"{shown} {value}"
