"""Applies weight rules to the tensors of a checkpoint: the targets filled, or every reason why they do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vlm.artifacts.weights import CODES
from vlm.convert.rules import Rule, Step
from vlm.errors import CheckpointError, listed


@dataclass
class ConversionResult:
    """The outcome of applying rules: the targets filled, and every reason why the weights do not fit."""

    prefix: str = ""  # put before source names in reasons, but for
    whole: frozenset[str] = frozenset()
    tensors: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)  # what filled each target
    missing: list[str] = field(default_factory=list)
    superfluous: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def reasons(self) -> list[str]:
        full_names = lambda names: listed(map(self.full, dict.fromkeys(names)))  # noqa: E731
        parts = [f"missing tensors {full_names(self.missing)}"] if self.missing else []
        parts += [f"unexpected tensors {full_names(self.superfluous)}"] if self.superfluous else []
        return [*parts, listed(self.errors)] if self.errors else parts

    def full(self, name: str) -> str:
        """Returns a source's name as its file has it."""
        return name if name in self.whole else self.prefix + name

    def fill(self, step: Step, source: Mapping[str, Tensor], targets: Mapping[str, Sequence[int]]) -> None:
        """Runs one step whose sources all exist."""
        if not step.targets and not step.beside:
            return  # dropped unread
        tensors = [source[name] for name in (*step.sources, *step.beside) if name in source]
        label = listed(map(self.full, step.sources))
        if others := {tensor.dtype for tensor in tensors if not _is_weight(tensor)}:
            self.errors.append(f"{label}: {listed(others)} is no type that weights have")
            return
        if any(tensor.is_meta for tensor in tensors):
            tensors = [_stand_in(tensor, step) for tensor in tensors]
        try:
            results = step.run(tensors)
        except (ValueError, RuntimeError, IndexError) as error:  # torch refuses the shapes: one more reason
            self.errors.append(f"{label}: {error}")
            return
        for name, result in zip(step.targets, results, strict=True):
            if tuple(result.shape) != tuple(targets[name]):
                self.errors.append(f"{label}: shape {list(result.shape)} should be {list(targets[name])}")
            self.tensors[name], self.steps[name] = result, step


def _is_weight(tensor: Tensor) -> bool:
    """Says whether a tensor's type may be a weight's: whole numbers mean nothing without the scales that are theirs."""
    return tensor.is_floating_point() and tensor.dtype in CODES


def _stand_in(tensor: Tensor, step: Step) -> Tensor:
    """Returns what gives a step the shapes of its results where a source is quantized: such a one is on torch's meta
    device, [out, in] whatever way its file keeps it."""
    return (tensor.T if step.transposes else tensor) if tensor.is_meta else tensor.to("meta")


def apply_rules(
    source: Mapping[str, Tensor],
    rules: Iterable[Rule],
    targets: Mapping[str, Sequence[int]],
    prefix: str = "",
    whole: Iterable[str] = (),
) -> ConversionResult:
    """Converts as `convert` does, but hands back the reasons instead of raising them. Source names that are not in
    `whole` are those of the file without `prefix`."""
    outcome, rules, names = ConversionResult(prefix, frozenset(whole)), list(rules), sorted(source)
    by_rule = [(rule, rule.steps(names)) for rule in rules]
    steps = [step for _, rule_steps in by_rule for step in rule_steps]
    _claims(outcome, steps, names, targets)
    for step in steps:
        if absent := [name for name in step.sources if name not in source]:
            outcome.missing += absent
        elif all(target in targets for target in step.targets):
            outcome.fill(step, source, targets)
    step_targets = {target for step in steps for target in step.targets}
    for target in (t for t in targets if t not in step_targets):
        outcome.missing += next((s for r in rules if (s := r.sources_of(target))), (f"for {target}",))
    for rule in (rule for rule, rule_steps in by_rule if not rule_steps and not rule.optional):
        if not any(map(rule.matches, outcome.missing)):
            outcome.missing.append(rule.source)
    outcome.tensors = {name: outcome.tensors[name] for name in targets if name in outcome.tensors}
    return outcome


def _claims(outcome: ConversionResult, steps: list[Step], names: list[str], targets: Mapping[str, Any]) -> None:
    """Adds errors to the outcome: every source tensor belongs to exactly one step, every target to at most one."""
    source_counts = Counter(name for step in steps for name in step.sources)
    target_counts = Counter(name for step in steps for name in step.targets)
    outcome.superfluous += [name for name in names if name not in source_counts]
    # a layer that the configuration does not count
    outcome.superfluous += [n for step in steps if not set(step.targets) <= set(targets) for n in step.sources]
    outcome.errors += [f"{outcome.full(name)} is used by {n} rules" for name, n in source_counts.items() if n > 1]
    outcome.errors += [f"{name} is filled by {n} rules" for name, n in target_counts.items() if n > 1]


def convert(
    source: Mapping[str, Tensor], rules: Iterable[Rule], targets: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Converts source tensors to the targets, in their order. `source` may read lazily; `targets` maps names to shapes.

    Raises one CheckpointError with every reason: tensors missing, unexpected, or of the wrong shape.
    """
    outcome = apply_rules(source, rules, targets)
    if outcome.reasons:
        raise CheckpointError(f"the weights do not fit the model: {'; '.join(outcome.reasons)}.")
    return outcome.tensors
