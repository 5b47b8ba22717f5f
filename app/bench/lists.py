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


def pairs(text: str, option: str) -> tuple[tuple[int, int], ...]:
    """Reads "60,20;128,20". Raises InputError for anything but pairs of whole numbers."""
    groups = [numbers(group, option, ",") for group in text.split(";")]
    pairs = tuple((group[0], group[1]) for group in groups if len(group) == 2)
    if len(pairs) < len(groups):
        raise InputError(f'{option} is {text!r}; give pairs such as "60,20;128,20".')
    return pairs
