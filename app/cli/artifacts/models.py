"""`vlm models`: what can be run."""

from __future__ import annotations

import json
from typing import Any

from vlm_app.cli.errors import command
from vlm_app.cli.options.common import Json


@command
def models(as_json: Json = False) -> None:
    """List model families, their published shapes and the packaged models.

    \b
    Examples:
      vlm models
      vlm models --json
    """
    catalog = {"families": _families(), "packaged": _packaged()}
    print(json.dumps(catalog, indent=2, ensure_ascii=False) if as_json else _text(catalog))


def _families() -> list[dict[str, Any]]:
    from vlm.registry.catalogs import families

    return [
        {
            "name": family.name,
            "summary": family.summary,
            "inputs": list(family.inputs),
            "roles": {role: part.model for role, part in family.roles.items()},
            "architectures": sorted(family.architectures),
        }
        for family in families().values()
    ]


def _packaged() -> list[dict[str, Any]]:
    from vlm.build.locate import packaged_models
    from vlm.registry.catalogs import match_family

    entries = []
    for name, path in packaged_models().items():
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        entries.append({"name": name, "family": match_family(config).name, "bytes": size})
    return entries


def _text(catalog: dict[str, Any]) -> str:
    lines = ["Families"]
    for family in catalog["families"]:
        lines.append(f"  {family['name']:<16} {family['summary']}")
        shapes = f"; shapes: {', '.join(family['architectures'])}" if family["architectures"] else ""
        lines.append(f"  {'':<16} takes {' and '.join(family['inputs'])}{shapes}")
    lines.append("Packaged models (vlm run --model NAME)")
    lines += [f"  {m['name']:<16} {m['family']}, {m['bytes'] / 1e6:.1f} MB" for m in catalog["packaged"]] or ["  none"]
    return "\n".join(lines)
