"""Model families and where they come from: catalogs, found through the entry-point group `vlm.catalogs`.

A catalog is a light module (no torch) with tuples: `MODELS` of `ModelRef`, `FAMILIES` of `FamilySpec` and, where it has
any, `CONVERTERS` of `ConverterRef` and `UNSUPPORTED` of `vlm.registry.unsupported.Unsupported`. A package of its own
may bring another one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.hugging_face.model_files import ModelFiles
from vlm.errors import ConfigError, listed, shown
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import ConverterRef, FamilySpec, ModelSpec
from vlm.registry.unsupported import ROWS, Unsupported, check_supported

if TYPE_CHECKING:
    from vlm.artifacts.native.checkpoint import Checkpoint
    from vlm.artifacts.native.engine_dir import EngineDir

CATALOG_GROUP = "vlm.catalogs"


@functools.cache
def installed() -> tuple[Any, ...]:
    return tuple(entry.load() for entry in sorted(entry_points(group=CATALOG_GROUP), key=lambda e: e.name))


def families() -> dict[str, FamilySpec]:
    return {family.name: family for catalog in installed() for family in catalog.FAMILIES}


def family(name: str) -> FamilySpec:
    """Raises ConfigError for a name that no installed catalog brings."""
    specs = families()
    if name not in specs:
        raise ConfigError(f"model family {shown(name)} is unknown; installed are {listed(sorted(specs), 40)}.")
    return specs[name]


def tokenizer_files() -> tuple[str, ...]:
    """Returns patterns of the files that families make tokenizers of, beyond those that many models have."""
    return tuple(dict.fromkeys(pattern for family in families().values() for pattern in family.tokenizer_files))


@functools.cache
def model_spec(name: str) -> ModelSpec:
    for catalog in installed():
        for ref in catalog.MODELS:
            if ref.name == name:
                return ref.load()
    raise ConfigError(f"model {shown(name)} is in no installed catalog; reinstall the package that brought it.")


def configs_of(model: Checkpoint | EngineDir) -> RoleConfigs:
    """Returns every role's configuration, of the class that its network takes."""
    roles = model.roles.items()
    return RoleConfigs.from_roles({role: model_spec(name).config.from_dict(model.config(role)) for role, name in roles})


def converters() -> tuple[ConverterRef, ...]:
    return tuple(ref for catalog in installed() for ref in getattr(catalog, "CONVERTERS", ()))


def converter_of(path: Path) -> ConverterRef | None:
    """Returns what converts this folder or file; None for a Hugging Face one and any other."""
    return next((ref for ref in converters() if ref.matches(path)), None)


def check_files(model: ModelFiles) -> None:
    """Raises UnsupportedModelError for a kind of model that is known and not served."""
    check_supported(model, _unsupported(model))


def _unsupported(model: ModelFiles) -> Iterator[Unsupported]:
    """Yields the kinds that are known and not served, a catalog's own before the common ones."""
    for catalog in installed():
        others = (family for other in installed() if other is not catalog for family in other.FAMILIES)
        is_served = any(family.matches(model.config) for family in others)
        yield from (row for row in getattr(catalog, "UNSUPPORTED", ()) if not (row.by_config and is_served))
    yield from ROWS


def check_model(path: Path) -> None:
    """Raises UnsupportedModelError where a folder or file, which exists, is of a kind that is not served."""
    check_files(ModelFiles.from_path(path))


def match_family(config: dict[str, Any], folder: Path | None = None) -> FamilySpec:
    """Returns the family of a Hugging Face config.json, which is a `folder`'s where that is known. Raises ConfigError
    when there is none."""
    check_files(ModelFiles("this model" if folder is None else str(folder), config=config))
    for spec in families().values():
        if spec.matches(config):
            return spec
    if (kind := config.get("model_type")) is None:
        raise ConfigError(
            f"{(folder or Path()) / 'config.json'} names no model_type: it is not one that transformers wrote; give a"
            " model's that is."
        )
    raise ConfigError(f"model_type {shown(kind)} is not supported; families here are {listed(sorted(families()), 40)}.")


def architecture(name: str) -> tuple[FamilySpec, dict[str, Any]]:
    """Returns family and Hugging Face config of a published shape (`nougat-base`). ConfigError for an unknown one."""
    specs = {arch: spec for spec in families().values() for arch in spec.architectures}
    if name not in specs:
        names = listed(sorted(specs), 40)
        raise ConfigError(f"architecture {shown(name)} is unknown; give a Hugging Face config.json, or one of {names}.")
    return specs[name], specs[name].architectures[name]()
