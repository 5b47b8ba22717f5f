"""What networks' configurations alone tell of a build: said before a long conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.hugging_face.model_files import ModelFiles
from vlm.artifacts.hugging_face.quantization_files import quantizations
from vlm.artifacts.native.checkpoint import Check
from vlm.artifacts.native.roles import RoleWeights
from vlm.build.limits import resolve_limits
from vlm.config import BuildConfig
from vlm.convert.roles import role_configs
from vlm.convert.values import invalid_values
from vlm.layers.quant.methods import quantization_of
from vlm.layers.quant.quantization import Quantization
from vlm.registry.catalogs import match_family, model_spec
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.weights.quantized import check_ignored, quantized_layers
from vlm.registry.weights.sharded import check_encoder_ranks, part_context


def check_build(path: Path, kind: str, build: BuildConfig) -> None:
    """Raises ConfigError for what cannot be built of a Hugging Face folder: limits beyond what the model allows, more
    ranks than can split it, and the layers and options of a quantization. Of another program's model `build_check`
    tells, of weights that are quantized already the conversion."""
    if kind != "hf":
        return
    with invalid_values(path):
        models, configs = _networks_of_config(HFFolder(path).config, path)
        _check_size(build, models, configs)
        if not quantizations(ModelFiles.from_path(path)):
            _check_quantization(build, models, configs)


def build_check(build: BuildConfig) -> Check:
    """Returns what says the same as `check_build` of networks that are about to be written."""

    def check(family: str, roles: Mapping[str, RoleWeights]) -> None:
        models, configs = _networks_of_weights(roles)
        _check_size(build, models, configs)
        _check_quantization(build, models, configs)

    return check


def roles_to_quantize(path: Path, kind: str, name: str | None, options: Mapping[str, Any]) -> list[str] | None:
    """Returns the roles of a source as `roles_of_config` does; None where its conversion alone tells: of a checkpoint,
    of another program's model, and of weights that are quantized already."""
    if name is None or kind != "hf" or quantizations(ModelFiles.from_path(path)):
        return None
    with invalid_values(path):
        return roles_of_config(HFFolder(path).config, name, options)


def roles_of_config(config: dict[str, Any], name: str, options: Mapping[str, Any]) -> list[str]:
    """Returns the roles of the networks that a quantization, as a manifest says it, changes in the model of a Hugging
    Face config.json. Raises ConfigError for a layer that the method cannot keep, and as check_ignored."""
    return _quantized_roles(*_networks_of_config(config), name, options)


def roles_of_weights(roles: Mapping[str, RoleWeights], name: str, options: Mapping[str, Any]) -> list[str]:
    """Returns the same of networks that are about to be written."""
    return _quantized_roles(*_networks_of_weights(roles), name, options)


def _networks_of_config(config: dict[str, Any], folder: Path | None = None) -> tuple[dict[str, str], RoleConfigs]:
    """Returns the names and configurations of networks, by role; `folder` as of match_family."""
    spec = match_family(config, folder)
    return {role: each.model for role, each in spec.roles.items()}, role_configs(spec, config)


def _networks_of_weights(roles: Mapping[str, RoleWeights]) -> tuple[dict[str, str], RoleConfigs]:
    configs = {role: model_spec(each.model).config.from_dict(each.config) for role, each in roles.items()}
    return {role: each.model for role, each in roles.items()}, RoleConfigs.from_roles(configs)


def _check_size(build: BuildConfig, models: Mapping[str, str], configs: RoleConfigs) -> None:
    resolve_limits(build, configs)
    check_encoder_ranks(build, models)
    for role, model in models.items():
        context = part_context(role, 0, build.mapping, Quantization())
        if context.mapping.size > 1:
            model_spec(model).skeleton(configs[role], context)


def _check_quantization(build: BuildConfig, models: Mapping[str, str], configs: RoleConfigs) -> None:
    build.check_quantization_options()
    if build.quantization is not None:
        _quantized_roles(models, configs, build.quantization, build.quantization_options)


def _quantized_roles(
    models: Mapping[str, str], configs: RoleConfigs, name: str, options: Mapping[str, Any]
) -> list[str]:
    check_ignored(options.get("ignore"), models, configs)
    kept = quantization_of(name, options)
    return [r for r, model in models.items() if quantized_layers(model_spec(model), configs[r], kept.of_role(r))]
