"""Lines of JSON."""

from __future__ import annotations

import json
from typing import Any

from vlm.artifacts.files import json_fault
from vlm.errors import InputError


def line_object(line: str, what: str = "JSON object") -> dict[str, Any]:
    """Returns the object that a line holds. Raises InputError for a line that is none, which ends without a full stop;
    `what` it must be."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is no {what}: {json_fault(error)}") from None
    if not isinstance(fields, dict):
        raise InputError(f"it is no {what}")
    return fields
