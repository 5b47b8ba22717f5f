"""One output file a document, written whole when its last page is done; what is known of it until then."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.ocr.sources import Target
from vlm.errors import InputError, VlmError

if TYPE_CHECKING:
    from vlm.pipeline import Output


@dataclass
class Draft:
    """A document under way: the pages (from 0) that were asked for, and what came of them so far."""

    target: Target
    pages: list[int]
    results: dict[int, Output | VlmError] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return len(self.results) == len(self.pages)

    @property
    def has_text(self) -> bool:
        """Says whether a page was read; a document without any gets no output, so that the next run tries it again."""
        return any(not isinstance(result, VlmError) for result in self.results.values())

    @property
    def missing(self) -> list[int]:
        return [page for page in self.pages if page not in self.results]

    @property
    def partial(self) -> Path:
        """Where an interrupted job leaves the finished pages: another name, so that the next run reads it again."""
        return self.target.out.with_suffix(f".partial{self.target.out.suffix}")


def markdown(draft: Draft) -> str:
    """Post-processed pages, blank lines between them, a comment in place of a page that failed."""
    return _pages(draft, lambda output: output.text)


def raw_text(draft: Draft) -> str:
    """The same with the text as the model gave it."""
    return _pages(draft, lambda output: output.raw_text)


def json_lines(draft: Draft) -> str:
    """A JSON object a page."""
    return "".join(json.dumps(_record(draft, page), ensure_ascii=False) + "\n" for page in sorted(draft.results))


FORMATS = {"md": markdown, "mmd": raw_text, "jsonl": json_lines}


def write(draft: Draft, format: str) -> None:
    """The finished document, and the end of what an interrupted run left of it."""
    _write_atomic(draft.target.out, FORMATS[format](draft))
    draft.partial.unlink(missing_ok=True)


def write_partial(draft: Draft, format: str) -> Path:
    """The finished pages of an interrupted document."""
    _write_atomic(draft.partial, FORMATS[format](draft))
    return draft.partial


def _pages(draft: Draft, text_of: Any) -> str:
    parts = [_page(page, draft.results[page], text_of) for page in sorted(draft.results)]
    if draft.missing:
        parts.append(f"<!-- interrupted: pages {', '.join(str(p + 1) for p in draft.missing)} were not read -->")
    return "\n\n".join(part for part in parts if part) + "\n"


def _page(page: int, result: Output | VlmError, text_of: Any) -> str:
    if isinstance(result, VlmError):
        return f"<!-- page {page + 1}: {str(result).replace('--', '- -')} -->"
    return text_of(result).strip()


def _record(draft: Draft, page: int) -> dict[str, Any]:
    record: dict[str, Any] = {"document": str(draft.target.source), "page": page + 1}
    result = draft.results[page]
    if isinstance(result, VlmError):
        return record | {"text": None, "finish_reason": "error", "tokens": 0, "error": str(result)}
    record |= {"text": result.text, "raw_text": result.raw_text, "finish_reason": result.finish_reason}
    return record | {"tokens": len(result.token_ids), "error": None}


def _write_atomic(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(draft, 0o666 & ~_umask())
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
