"""What the scripts beside it share. They run in an environment that has a client and nothing of vlm."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY = "SECRET"


def data_uri(file: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(Path(file).read_bytes()).decode()}"


def image_part(uri: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri}}


def error_of(call: Callable[[], Any]) -> list[str]:
    """Its kind and what it says."""
    try:
        return ["no error", str(call())]
    except Exception as error:
        return [type(error).__name__, str(error)]
