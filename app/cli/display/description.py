"""What `vlm inspect` tells, as text."""

from __future__ import annotations

from typing import Any


def description_text(description: dict[str, Any]) -> str:
    """Returns a description as lines, a key each."""
    lines = []
    for key, value in description.items():
        title = key.replace("_", " ")
        if key == "roles":
            lines += [f"{role:<12} {_role_text(part)}" for role, part in value.items()]
        elif key == "memory":
            lines += [f"{title:<12} " + ", ".join(f"{n.replace('_', ' ')} {_size(v)}" for n, v in value.items())]
        elif key == "stages":
            lines += [f"{'stage ' + str(number):<12} {_stage_text(stage)}" for number, stage in enumerate(value)]
        elif isinstance(value, dict):
            lines.append(f"{title:<12} " + (", ".join(f"{n} {_plain(v)}" for n, v in value.items()) or "none"))
        else:
            lines.append(f"{title:<12} {_plain(value)}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_plain(part)}" for name, part in value.items()) + ")"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _role_text(part: dict[str, Any]) -> str:
    types = ", ".join(part["dtypes"])
    return f"{part['model']}, {part['parameters']:,} parameters, {_size(part['bytes'])}, {types}"


def _stage_text(stage: dict[str, Any]) -> str:
    layers = "" if stage["layers"] is None else f"decoder layers {stage['layers'][0]} to {stage['layers'][1]}, "
    return f"{layers}weights of its ranks {', '.join(map(_size, stage['weights']))}"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
