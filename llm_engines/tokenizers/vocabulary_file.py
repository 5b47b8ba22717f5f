"""Vocabularies as `vocab.json` holds them, beside a SentencePiece model: entries and their ids."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llm_engines.tokenizers.piece_vocabulary import NEVER
from vlm.artifacts.files import read_json
from vlm.errors import CheckpointError, listed

WHAT = "vocabulary"


def read_vocabulary(path: Path, needed: Iterable[str] = ()) -> list[str]:
    """Returns the entries in the order of their ids. Raises CheckpointError for a file that is no such vocabulary, or
    lacks one of the `needed` entries."""
    ids = read_json(path, CheckpointError, WHAT)
    entries = [f"{NEVER}{i}" for i in range(2 * len(ids))]  # an id may be nobody's
    for entry, i in ids.items():
        if not isinstance(i, int) or not 0 <= i < len(entries):
            raise CheckpointError(f"{path} is no vocabulary: {entry[:40]!r} has the id {str(i)[:40]}; fetch it again.")
        entries[i] = entry
    if absent := [entry for entry in needed if entry not in ids]:
        raise CheckpointError(f"{path} lacks {listed(absent)}, which every such vocabulary has; fetch it again.")
    return entries[: max(ids.values(), default=-1) + 1]


def existing(path: Path, of: str) -> Path:
    """Returns the path. Raises CheckpointError where there is no such file beside `of`."""
    if not path.is_file():
        raise CheckpointError(
            f"{path.parent} has {of} and lacks {path.name}, which splits texts; fetch it from where the model was"
            " published, then convert again."
        )
    return path
