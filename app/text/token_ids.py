"""Files of token ids: a row an input, as CSV, as lines of JSON, or as an array of numpy's."""

from __future__ import annotations

import csv
import io
import json
import pickle
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vlm.artifacts.files import open_regular, read_small
from vlm.errors import InputError
from vlm_app.text.sources import Item

if TYPE_CHECKING:
    import numpy as np

PADDING = -1  # beside the model's own
SUFFIXES = (".csv", ".npy", ".jsonl")
NUMBER = re.compile(r"-?[0-9]{1,19}")
MAX_FILE_BYTES = 2**28  # of a text; an array takes a fraction of it
MIN_CLAIMED = 2**20  # rows and ids that any file may have
# what an array of lists is rebuilt from; nothing else of a pickle is
REBUILDING = {("_reconstruct", "numpy.core.multiarray"), ("_reconstruct", "numpy._core.multiarray"),
              ("ndarray", "numpy"), ("dtype", "numpy"), ("scalar", "numpy._core.multiarray"),
              ("scalar", "numpy.core.multiarray"), ("_frombuffer", "numpy._core.numeric")}  # fmt: skip


def read_token_ids(file: Path) -> list[Item]:
    """Reads a file's rows as items with `input_ids`; an empty row is an empty item. InputError names a wrong row."""
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES or not file.is_file():
        what = "does not exist" if not file.exists() else "is a folder" if file.is_dir() else "is of another kind"
        raise InputError(f"--input-ids {file} {what}; give a .csv, .npy or .jsonl file of token ids.")
    try:
        rows = list({".csv": _csv, ".npy": _npy, ".jsonl": _jsonl}[suffix](file))
    except OSError as error:
        raise InputError(f"--input-ids {file} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"--input-ids {file} is no text of numbers; write them apart by commas.") from None
    if not any(rows):
        raise InputError(f"--input-ids {file} holds no token ids; give a row of them for each input.")
    return [_item(file, number, row) for number, row in enumerate(rows, 1)]


def without_padding(items: Iterable[Item], pad: int) -> Iterator[Item]:
    """Takes the model's own padding from both ends of the rows of an array."""
    for item in items:
        if "input_ids" not in item.fields or not item.source.lower().endswith(".npy"):
            yield item
            continue
        rest = {name: value for name, value in item.fields.items() if name != "input_ids"}
        ids = _stripped(item.fields["input_ids"], pad)
        yield replace(item, fields={**rest, "input_ids": ids} if ids else rest)


def _item(file: Path, number: int | None, ids: list[int]) -> Item:
    return Item(str(file), number, fields={"input_ids": ids} if ids else {})


def _stripped(ids: list[int], pad: int) -> list[int]:
    places = [place for place, token in enumerate(ids) if token != pad]
    return ids[places[0] : places[-1] + 1] if places else []


def _text(file: Path) -> str:
    return read_small(file, MAX_FILE_BYTES).decode("utf-8-sig")


def _csv(file: Path) -> Iterator[list[int]]:
    for number, row in enumerate(csv.reader(io.StringIO(_text(file))), 1):
        yield _checked(file, number, [cell.strip() for cell in row if cell.strip()])


def _jsonl(file: Path) -> Iterator[list[int]]:
    for number, line in enumerate(_text(file).splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else []
        except (ValueError, RecursionError):
            row = None
        yield _checked(file, number, row.get("input_ids") if isinstance(row, dict) else row)


def _npy(file: Path) -> Iterator[list[int]]:
    array = _array(file)
    if (array.dtype != object and (array.dtype.kind not in "iu" or array.ndim not in (1, 2))) or not array.ndim:
        raise InputError(
            f"--input-ids {file} is {array.dtype} of shape {list(array.shape)}; give whole numbers [rows, tokens]."
        )
    _check_claimed(file, len(array) + array.size)
    for number, row in enumerate([array] if array.ndim == 1 and array.dtype != object else array, 1):
        _check_claimed(file, getattr(row, "size", 0))
        ids = row.tolist() if hasattr(row, "tolist") else row
        yield _checked(file, number, _stripped(ids, PADDING) if isinstance(ids, list) else ids)


def _check_claimed(file: Path, count: int) -> None:
    """Refuses rows without columns, and arrays in pickles, which take no bytes."""
    if count > max(file.stat().st_size, MIN_CLAIMED):
        raise InputError(f"--input-ids {file} claims {count:,} rows and ids, more than it has bytes; write it again.")


def _array(file: Path) -> np.ndarray:
    """Reads an array; one of lists is pickled, of which nothing but numbers is rebuilt."""
    import numpy as np

    try:
        with open_regular(file) as data:
            version = np.lib.format.read_magic(data)
            header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[version[0]]
            if not header(data)[2].hasobject:
                data.seek(0)
                return np.lib.format.read_array(data, allow_pickle=False)
            if isinstance(array := _Numbers(data).load(), np.ndarray):
                return array
    except OSError:
        raise
    except Exception:  # a header and a pickle may end in any of them
        pass
    raise InputError(f"--input-ids {file} is no .npy file of token ids; write it with numpy.save.")


class _Numbers(pickle.Unpickler):
    """Rebuilds arrays and lists of numbers."""

    def __init__(self, data: BinaryIO):
        super().__init__(data)

    def find_class(self, module: str, name: str) -> Any:
        if (name, module) not in REBUILDING:
            raise pickle.UnpicklingError(f"{module}.{name} is no array")
        return super().find_class(module, name)


def _checked(file: Path, number: int, row: Any) -> list[int]:
    if not isinstance(row, list):
        raise InputError(f'--input-ids {file} row {number} is no list; give ids, or an object with "input_ids".')
    for token in row:
        digits = isinstance(token, str) and NUMBER.fullmatch(token)
        if not digits and (not isinstance(token, int) or isinstance(token, bool)):
            raise InputError(f"--input-ids {file} row {number} holds {repr(token)[:40]}; give whole numbers.")
    return [int(token) for token in row]
