"""What an adapter changes of Hugging Face's modules -> what it changes of the Linear layers of each network.

The family's own weight rules say where: a rule that joins, turns or reorders the rows of weights does the same to what
an adapter has for each row.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from vlm.artifacts.weights import PrefixView
from vlm.convert.adapters.peft import PeftAdapter, read_peft
from vlm.convert.adapters.trained_tensors import Replacement, is_tied, replacements
from vlm.convert.roles import named_tensors, partition_tensors
from vlm.convert.rules import Step
from vlm.errors import CheckpointError, listed
from vlm.layers.adapters.base import AdapterWeights, Layers
from vlm.layers.linear import Linear
from vlm.registry.catalogs import model_spec
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import FamilySpec, ModelSpec

PER_ROW = ("encoder", "decoder")  # roles whose networks know of each row which request it is of


def read_layers(
    folder: Path, spec: FamilySpec, configs: RoleConfigs, roles: tuple[str, ...] = PER_ROW
) -> PlacedAdapter:
    """Returns what the adapter of a folder changes of each network of a model; its tensors are frozen ones, which the
    model should have. Raises ConfigError for a kind of adapter that is not done; CheckpointError for a damaged one, and
    for one of another model, which names all modules that these networks have not, or of another shape."""
    return place(read_peft(folder), folder, spec, configs, roles)


def read_all(folder: Path, spec: FamilySpec, configs: RoleConfigs, roles: tuple[str, ...]) -> PlacedAdapter:
    """Returns what the adapter of a folder changes, tensors that it replaces included. Raises as read_layers."""
    return place(read_peft(folder, merging=True), folder, spec, configs, roles)


@dataclass(frozen=True)
class PlacedAdapter:
    """What an adapter changes of each network of a model, by role."""

    layers: dict[str, Layers]
    tensors: dict[str, Mapping[str, Sequence[Replacement]]]  # by their names in the network


def place(
    adapter: PeftAdapter, folder: Path, spec: FamilySpec, configs: RoleConfigs, roles: tuple[str, ...]
) -> PlacedAdapter:
    """Returns where an adapter's changes belong. Raises CheckpointError as read_layers."""
    placing = _placings(adapter, spec, configs, [role for role in roles if role in spec.roles])
    elsewhere = functools.partial(_elsewhere, adapter, spec, configs, [role for role in configs if role not in placing])
    errors = [error for each in placing.values() for error in each.errors]
    if errors := [*errors, *_strays(adapter, placing, elsewhere)]:
        made_for = f"; it was made for {adapter.base}" if adapter.base else ""
        raise CheckpointError(f"the adapter {folder} does not fit this {spec.name} model: {listed(errors)}{made_for}.")
    return PlacedAdapter(
        {role: each.layers for role, each in placing.items()}, {role: each.tensors for role, each in placing.items()}
    )


def _placings(
    adapter: PeftAdapter, spec: FamilySpec, configs: RoleConfigs, roles: Iterable[str]
) -> dict[str, _Placing]:
    """Returns what is of each of these networks."""
    names = named_tensors(_by_weight(adapter), spec)
    by_role = partition_tensors(names, spec.roles)
    placings = {role: _Placing(model_spec(spec.roles[role].model), configs[role]) for role in roles}
    for role, each in placings.items():
        own = spec.roles[role]
        each.place(adapter, dict[str, Any](PrefixView(names, by_role[role], own.weight_prefix, own.shared_prefix)))
    return placings


def _strays(
    adapter: PeftAdapter, placing: Mapping[str, _Placing], elsewhere: Callable[[list[str]], str]
) -> Iterator[str]:
    """Yields what is wrong with modules and tensors that have no place in any network; `elsewhere` says what can be
    done about such modules."""
    placed = {name for each in placing.values() for name in each.placed}
    replaced = {name for each in placing.values() for name in each.replaced}
    tied = {name for each in placing.values() for name in each.tied} - replaced - placed
    networks = " or ".join(placing)
    if strays := sorted(name for name in adapter.modules if _weight_of(name) not in placed | tied):
        yield f"{listed(strays)} is no linear layer of its {networks}{elsewhere(strays)}"
    if tied:
        yield (
            f"{listed(sorted(tied))} is one tensor with others in this model (tied embeddings), and would be one of its"
            " own: merge it with PEFT (merge_and_unload(), save_pretrained())"
        )
    if strays := sorted(adapter.trained.keys() - placed - replaced - tied):
        yield f"{listed(strays)} is no tensor of its {networks}"


def _elsewhere(
    adapter: PeftAdapter, spec: FamilySpec, configs: RoleConfigs, others: Iterable[str], strays: Iterable[str]
) -> str:
    """Says what can be done about modules of `others`, networks that no request changes, and about those that are no
    linear layer of any."""
    weights = {*map(_weight_of, strays)}
    for role, each in _placings(adapter, spec, configs, others).items():
        if each.placed & weights:
            return f" (vlm convert --merge-lora takes its {role} network's, too)"
    return "; merge those that its model has with PEFT (merge_and_unload(), save_pretrained())"


def _by_weight(adapter: PeftAdapter) -> dict[str, Any]:
    """Returns the names of modules' weights, which rules and prefixes are about, and of tensors, each by itself."""
    return {name: name for name in (*map(_weight_of, adapter.modules), *adapter.trained)}


def _weight_of(module: str) -> str:
    return f"{module}.weight"


@dataclass
class _Placing:
    """Finds the layers of one network that an adapter's modules are of."""

    model: ModelSpec
    config: Any
    layers: dict[str, list[AdapterWeights]] = field(default_factory=lambda: defaultdict(list))
    tensors: dict[str, list[Replacement]] = field(default_factory=lambda: defaultdict(list))
    # those of a wrong shape included: weights of modules, and what nothing reads; tensors that take another one's place
    placed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    tied: set[str] = field(default_factory=set)  # tensors that others here are copies of
    errors: list[str] = field(default_factory=list)

    def place(self, adapter: PeftAdapter, names: Mapping[str, str]) -> None:
        """Takes what is of this network; `names`: of modules' weights and of tensors, by those that they have here."""
        network = self.model.skeleton(self.config)
        linears = {name: module for name, module in network.named_modules() if isinstance(module, Linear)}
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        weights = {_weight_of(name): each for name, each in adapter.modules.items()}
        for rule in self.model.rules(self.config):
            for step in rule.steps(names):
                if not step.targets and not step.beside:  # weights that no computation reads
                    self.placed |= {names[source] for source in step.sources}
                    continue
                paths = [name.rpartition(".")[0] for name in step.targets]
                targets = {path: linears[path] for path in paths if path in linears}
                trained = {s: adapter.trained[names[s]] for s in step.sources if names.get(s) in adapter.trained}
                if is_tied(rule, step):
                    changed = weights.keys() | adapter.trained.keys()
                    self.tied |= {names[source] for source in step.sources if names.get(source) in changed}
                elif trained and all(name in shapes for name in step.targets):
                    self._replace(step, trained, names, shapes=shapes, sizes=_source_sizes(step, targets))
                if targets and len(targets) == len(paths):
                    self._change(step, targets, weights, names)

    def _change(
        self,
        step: Step,
        targets: Mapping[str, Linear],
        weights: Mapping[str, AdapterWeights],
        names: Mapping[str, str],
    ) -> None:
        for source in (source for source in step.sources if names.get(source) in weights):
            self.placed.add(names[source])
            self._add(step, source, targets, names[source].removesuffix(".weight"), weights[names[source]])

    def _replace(self, step: Step, trained: Mapping[str, Tensor], names: Mapping[str, str], **layout: Any) -> None:
        self.replaced |= {names[source] for source in trained}
        try:
            found = replacements(step, trained, **layout)
        except (ValueError, RuntimeError) as error:  # torch refuses the shapes
            self.errors.append(f"{listed(names[source] for source in trained)} {error}")
            return
        for name, each in found.items():
            self.tensors[name].append(each)

    def _add(self, step: Step, source: str, targets: Mapping[str, Linear], module: str, change: AdapterWeights) -> None:
        sizes, width = _source_sizes(step, targets), next(iter(targets.values())).in_features
        shape = sizes.get(source, 0), width
        try:
            order = step.column_order(shape) if step.is_function else None
            move = (lambda values: _spread(step, source, values, sizes)) if order is None else (lambda values: [values])
            placed = change.placed(shape, move)
        except ValueError as error:
            self.errors.append(f"{module} {error}")
            return
        for path, each in zip(targets, placed, strict=True):
            own = each if order is None else each.part(slice(None), order)
            if own is not None:
                self.layers[path].append(own)


def _source_sizes(step: Step, targets: Mapping[str, Linear]) -> dict[str, int]:
    """Returns the rows of each weight that a step makes the targets of: those of a part, or of all there are."""
    parts = [size for linear in targets.values() for size in linear.part_sizes.values()]
    return dict(zip(step.sources, [sum(parts)] if len(step.sources) == 1 else parts, strict=False))


def _spread(step: Step, source: str, values: Tensor, sizes: Mapping[str, int]) -> list[Tensor]:
    """Returns the rows [out, k] of each target, zeros where they are of other sources: values go the way of the weight
    of whose rows they are."""
    others = {name: values.new_zeros(size, values.shape[1]) for name, size in sizes.items()}
    stand_ins = [*(others | {source: values}).values()]
    return step.run([each.T for each in stand_ins] if step.transposes else stand_ins)
