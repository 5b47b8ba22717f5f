"""config.pbtxt: Triton's model configuration as text, by Triton's own protobuf."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

from vlm.errors import ConfigError, InputError, VlmWarning
from vlm_app.core.names import one_line

EXTRA = "pip install 'vlm-runtime[triton]'"


def to_text(config: dict[str, Any]) -> str:
    """Returns the text of a configuration, fields by their names in the protobuf."""
    model_config = schema().ModelConfig()
    from google.protobuf import json_format, text_format

    return text_format.MessageToString(json_format.ParseDict(config, model_config))


def parse(text: str, where: object) -> Any:
    """Returns a ModelConfig; fields of a newer Triton are told of. ConfigError for what is none; `where` names it."""
    model_config = schema().ModelConfig()
    from google.protobuf import text_format

    try:
        message = text_format.Parse(text, model_config, allow_unknown_field=True)
    except text_format.ParseError as error:
        reason = one_line(str(error)).rstrip(".")
        raise ConfigError(f"{where} is no model configuration of Triton's: {reason}.") from None
    try:
        text_format.Parse(text, schema().ModelConfig())
    except text_format.ParseError as error:
        reason = one_line(str(error)).rstrip(".")
        warnings.warn(f"{where}: a field is unknown here and not applied: {reason}.", VlmWarning, stacklevel=2)
    return message


def schema() -> ModuleType:
    """Returns Triton's protobuf; InputError with the pip command where it is not installed."""
    try:
        from tritonclient.grpc import model_config_pb2
    except (ImportError, RuntimeError):  # RuntimeError: tritonclient is there without grpc
        raise InputError(f"config.pbtxt needs the packages tritonclient and grpcio: {EXTRA}.") from None
    return model_config_pb2
