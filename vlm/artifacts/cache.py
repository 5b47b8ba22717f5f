"""Where what is made once is kept: engines, archives, timings."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from vlm.errors import EngineError, VlmError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # what writing alone can meet


def cache_root(cache_dir: str | Path | None = None) -> Path:
    """Returns `cache_dir`, else `$VLM_CACHE`, else `~/.cache/vlm`."""
    return Path(cache_dir or os.environ.get("VLM_CACHE") or Path.home() / ".cache" / "vlm").expanduser()


@contextlib.contextmanager
def cache_errors(root: Path) -> Iterator[None]:
    """Raises EngineError where what is done there fails for the disk's reasons."""
    try:
        yield
    except (OSError, VlmError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(reason, OSError) or (reason is not error and reason.errno not in NO_ROOM):
            raise
        raise EngineError(
            f"the cache {root} cannot be written: {reason.strerror or reason}; set VLM_CACHE to a writable folder with"
            " room for the model."
        ) from error
