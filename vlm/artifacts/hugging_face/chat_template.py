"""A model folder's chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlm.artifacts.files import read_json, read_small
from vlm.errors import EngineError

TEMPLATE = "chat_template.jinja"
NAMED_DEFAULT = "additional_chat_templates/default.jinja"  # where several templates are files, each by its name
# where Hugging Face's tokenizers and its processors look first
OF_TOKENIZERS = (TEMPLATE, "tokenizer_config.json", "chat_template.json", "processor_config.json")
OF_PROCESSORS = ("processor_config.json", "chat_template.json", TEMPLATE, "tokenizer_config.json")


def read_template(folder: Path, *, with_images: bool) -> str | None:
    """Returns a folder's chat template, a file of its own or a part of settings: the one that Hugging Face's processor
    takes where a model is shown images, else the one that its tokenizer does."""
    places = (folder / name for name in (OF_PROCESSORS if with_images else OF_TOKENIZERS))
    return next((text for path in places if path.exists() and (text := _template_of(path)) is not None), None)


def _template_of(path: Path) -> str | None:
    if path.suffix == ".jinja":
        return read_text(path)
    template: Any = read_json(path, EngineError, "engine").get("chat_template")
    if isinstance(template, list):  # several by name
        template = {str(x.get("name")): x.get("template") for x in template if isinstance(x, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def read_text(file: Path) -> str:
    """Raises EngineError for a file that cannot be read or is no UTF-8."""
    try:
        return read_small(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngineError(f"{file} is damaged: it is no UTF-8 ({error.reason}); fetch it again.") from None
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror}.") from None
