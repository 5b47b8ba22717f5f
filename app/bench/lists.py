"""Options that hold several values: "1;8;32", "60,20;128,20", "torch,onnxruntime"."""

from __future__ import annotations

from vlm.errors import InputError


def numbers(text: str, option: str, separator: str = ";") -> tuple[int, ...]:
    """Reads "1;8;32". Raises InputError for anything but whole numbers."""
    try:
        return tuple(int(part) for part in text.split(separator))
    except ValueError:
        raise InputError(f"{option} holds {text!r}; give whole numbers, apart by {separator!r}.") from None


def names(text: str | None) -> tuple[str, ...]:
    """Reads "torch,onnxruntime"."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def pairs(text: str, option: str) -> tuple[tuple[int, ...], ...]:
    """Reads "60,20;128,20". Raises InputError for anything but pairs of whole numbers."""
    found = tuple(numbers(pair, option, ",") for pair in text.split(";"))
    if any(len(pair) != 2 for pair in found):
        raise InputError(f'{option} is {text!r}; give pairs such as "60,20;128,20".')
    return found
