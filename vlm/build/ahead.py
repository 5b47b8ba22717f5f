"""What a config.json alone tells of a build: said before a long conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlm.artifacts.hf_folder import HFFolder
from vlm.artifacts.model_files import ModelFiles
from vlm.artifacts.quantization_files import quantizations
from vlm.build.limits import resolve_limits
from vlm.config import BuildConfig
from vlm.convert.roles import role_configs
from vlm.convert.values import invalid_values
from vlm.layers.quant.methods import quantization_of
from vlm.layers.quant.quantization import Quantization
from vlm.registry.catalogs import match_family, model_spec
from vlm.registry.quantized_weights import check_ignored, quantized_layers
from vlm.registry.sharded_weights import part_context


def check_build(path: Path, kind: str, build: BuildConfig) -> None:
    """Raises ConfigError for what cannot be built of a Hugging Face folder: limits beyond what the model allows, more
    ranks than can split it, and the layers and options of a quantization. Of other sources, and of weights that are
    quantized already, the conversion tells."""
    if kind != "hf":
        return
    with invalid_values(path):
        config = HFFolder(path).config
        spec = match_family(config)
        configs = role_configs(spec, config)
        resolve_limits(build, configs)
        for role, each in spec.roles.items():
            context = part_context(role, 0, build.mapping, Quantization())
            if context.mapping.size > 1:
                model_spec(each.model).skeleton(configs[role], context)
    if not quantizations(ModelFiles.from_path(path)):
        build.check_quantization_options()
        roles_to_quantize(path, kind, build.quantization, build.quantization_options)


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
    spec = match_family(config)
    configs, models = role_configs(spec, config), {role: each.model for role, each in spec.roles.items()}
    check_ignored(options.get("ignore"), models, configs)
    kept = quantization_of(name, options)
    return [r for r, model in models.items() if quantized_layers(model_spec(model), configs[r], kept.of_role(r))]
