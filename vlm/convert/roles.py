"""A folder's tensors and configuration -> those of each role of its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import Layout, MergedView, PrefixView, TensorSource
from vlm.config import Config
from vlm.convert.conversion import ConversionResult, apply_rules
from vlm.errors import CheckpointError, ConfigError, listed
from vlm.layers.context import ModelContext
from vlm.registry.catalogs import model_spec
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import FamilySpec, ModelSpec, Role

# what lies outside of the base model in Hugging Face's classes
HEADS = ("lm_head.", "final_logits_bias")


def role_configs(spec: FamilySpec, hf: dict[str, Any]) -> RoleConfigs:
    """Reads each role's configuration out of a Hugging Face one; ConfigError when its part is missing or
    unsupported."""
    keys = [role.config_key for role in spec.roles.values() if role.config_key]
    if absent := [key for key in keys if not isinstance(hf.get(key), dict)]:
        raise ConfigError(f"the configuration of this {spec.name} model lacks its part {listed(absent)}.")
    roles = spec.roles.items()
    return RoleConfigs.from_roles({name: model_spec(role.model).parse(_part(role, hf)) for name, role in roles})


def _part(role: Role, hf: dict[str, Any]) -> dict[str, Any]:
    """Returns a role's part of a configuration; a head that the whole says is tied is tied there, too."""
    if not role.config_key:
        return hf
    part = hf[role.config_key]
    is_tied = role.tied is not None and hf.get("tie_word_embeddings", role.tied)
    return part | {"tie_word_embeddings": True} if is_tied else part


def module_layout(spec: ModelSpec, config: Config, context: ModelContext | None = None) -> Layout:
    """Returns a module's layout: name -> (dtype, shape) of all that it keeps; nothing is allocated. `context` None: a
    whole network, whose weights are as they are."""
    state = spec.skeleton(config, context).state_dict()
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}


@dataclass(frozen=True)
class ConvertedRole:
    """One network of a folder: what the rules made of its tensors."""

    spec: ModelSpec
    config: Config
    outcome: ConversionResult
    names: Mapping[str, str]  # of its sources: as the rules know them -> those of the whole folder

    @property
    def weights(self) -> RoleWeights:
        return RoleWeights(self.spec.name, self.config.to_dict(), TensorSource.from_tensors(self.outcome.tensors))


def convert_roles(
    tensors: Mapping[str, Tensor], spec: FamilySpec, configs: RoleConfigs, folder: Path
) -> dict[str, ConvertedRole]:
    """Converts a folder's tensors to every role's. Raises one CheckpointError with every reason why they do not fit."""
    names_by_role, reasons = partition_tensors(tensors, spec.roles), []
    known_names = {name for names in names_by_role.values() for name in names}
    if strays := sorted(set(tensors) - known_names):
        reasons.append(f"tensors of no part of a {spec.name} model: {listed(strays)}")
    roles = {}
    for name, role in spec.roles.items():
        model = model_spec(role.model)
        source = PrefixView(tensors, names_by_role[name], role.weight_prefix, role.shared_prefix)
        config = model.config_from_weights(configs[name], source)
        targets = {target: shape for target, (_, shape) in module_layout(model, config).items()}
        whole = [name.removeprefix(role.shared_prefix) for name in role.shared_tensors]
        outcome = apply_rules(source, model.rules(config), targets, role.weight_prefix, whole)
        reasons += outcome.reasons
        roles[name] = ConvertedRole(model, config, outcome, source.names)
    if reasons:
        raise CheckpointError(f"the weights in {folder} do not fit its config.json: {'; '.join(reasons)}.")
    return roles


def named_tensors(tensors: Mapping[str, Tensor], spec: FamilySpec) -> Mapping[str, Tensor]:
    """Returns a folder's tensors under the names that the family's roles know."""
    return _renamed(with_base_prefix(tensors, spec.base_prefixes), spec.renames)


def _renamed(tensors: Mapping[str, Tensor], beginnings: Mapping[str, str]) -> Mapping[str, Tensor]:
    parts = {new: [name for name in tensors if name.startswith(old)] for old, new in beginnings.items()}
    if not any(parts.values()):
        return tensors
    others = [name for name in tensors if not name.startswith(tuple(beginnings))]
    olds = {new: old for old, new in beginnings.items()}
    return MergedView(
        {**{new: PrefixView(tensors, parts[new], olds[new]) for new in parts}, "": PrefixView(tensors, others, "")}
    )


def with_base_prefix(tensors: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> Mapping[str, Tensor]:
    """Returns the tensors under the names of the whole model, where none has a prefix of its base model."""
    if not prefixes or any(name.startswith(prefixes) for name in tensors):
        return tensors
    heads = [name for name in tensors if name.startswith(HEADS)]
    inner = [name for name in tensors if not name.startswith(HEADS)]
    return MergedView({prefixes[0]: PrefixView(tensors, inner, ""), "": PrefixView(tensors, heads, "")})


def partition_tensors(names: Mapping[str, Tensor], roles: Mapping[str, Role]) -> dict[str, list[str]]:
    """Returns the tensors' names by role: each goes to the role with the longest prefix of its name (to several, when
    they share that prefix), and to those that name it."""
    names_by_role: dict[str, list[str]] = {role: [] for role in roles}
    for name in names:
        fitting = [role for role, spec in roles.items() if name.startswith(spec.weight_prefix)]
        longest = max((len(roles[role].weight_prefix) for role in fitting), default=0)
        for role in fitting:
            if len(roles[role].weight_prefix) == longest:
                names_by_role[role].append(name)
        for role, spec in roles.items():
            if name in spec.shared_tensors and name not in names_by_role[role]:
                names_by_role[role].append(name)
    return names_by_role
