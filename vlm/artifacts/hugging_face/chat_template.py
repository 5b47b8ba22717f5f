"""A model folder's chat template."""

from __future__ import annotations

from pathlib import Path

from vlm.artifacts.files import read_json, read_small
from vlm.errors import EngineError


def read_template(folder: Path) -> str | None:
    """Returns a folder's chat template: a file of its own, or a part of the tokenizer's or processor's settings."""
    if (file := folder / "chat_template.jinja").exists():
        return _read_text(file)
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        if (folder / name).exists():
            template = read_json(folder / name, EngineError, "engine").get("chat_template")
            if isinstance(template, list):  # several by name
                template = {str(x.get("name")): x.get("template") for x in template if isinstance(x, dict)}
            if isinstance(template, dict):
                template = template.get("default")
            if isinstance(template, str):
                return template
    return None


def _read_text(file: Path) -> str:
    try:
        return read_small(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngineError(f"{file} is damaged: it is no UTF-8 ({error.reason}); fetch it again.") from None
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror}.") from None
