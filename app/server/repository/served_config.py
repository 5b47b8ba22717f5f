"""What a config.pbtxt says of a model that `vlm serve` serves: every word of it honoured, told of, or refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlm.artifacts.native.engine_dir import EngineDir, is_engine
from vlm.build.store import rebuild_command
from vlm.config import BuildConfig
from vlm.errors import ConfigError, listed
from vlm.packaged import user_path
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository import config_fields, fastertransformer
from vlm_app.server.repository.triton_options import PARAMETERS, options_from_words
from vlm_app.server.tensors import ft_tensors
from vlm_app.server.tensors.aliases import nearest
from vlm_app.server.tensors.model import KNOWN_INPUTS, KNOWN_OUTPUTS, type_errors

PYTHON = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")  # parameters of Triton's Python backend: of its own


@dataclass(frozen=True)
class ServedConfig:
    """Holds what config.pbtxt says; without one all is as it stands here."""

    options: LoadOptions = field(default_factory=LoadOptions)
    checkpoint: str = ""  # model_checkpoint_path; "": in the version's folder
    families: tuple[str, ...] = ()  # which the model may be of; (): any
    datatypes: Mapping[str, str] = field(default_factory=dict)  # of outputs, by their names
    notes: tuple[str, ...] = ()  # what is not applied
    decoupled: bool = True  # False where a stream's request gets one response

    @classmethod
    def from_proto(cls, config: Any, name: object) -> ServedConfig:
        """Reads a ModelConfig. Raises ConfigError with every reason why the model `name` cannot be served so."""
        words = {key: value.string_value for key, value in config.parameters.items()}
        errors = [
            *config_fields.errors(config),
            *fastertransformer.errors(words),
            *_unknown_parameters(words, config.backend),
            *_unknown_tensors(config),
            *_unknown_steps(config),
            *type_errors(_datatypes(config)),
        ]
        if errors:
            raise ConfigError(f"{name}: {'; '.join(errors)}.")
        options = _options(config, words)
        return cls(
            options,
            words.get(fastertransformer.CHECKPOINT, "").strip(),
            fastertransformer.families_of(words, config.backend),
            _datatypes(config),
            tuple(f"{name}: {note}." for note in _notes(config, options)),
            config.model_transaction_policy.decoupled,
        )

    def within(self, ensemble: ServedConfig) -> ServedConfig:
        """Returns an engine's configuration as that of the ensemble whose step it is."""
        return replace(
            self,
            options=self.options.overridden_by(ensemble.options),
            datatypes=ensemble.datatypes,
            notes=(*self.notes, *ensemble.notes),
        )

    def check_family(self, name: str, where: object) -> None:
        """Raises ConfigError where the model is of another family than its model_type says."""
        if self.families and name not in self.families:
            kind = next(kind for kind, names in fastertransformer.FAMILIES.items() if names == self.families)
            raise ConfigError(
                f"{where}: model_type is {kind}, which stands for {listed(self.families)}, and the model is of the"
                f" family {name}; mend it, or leave backend and model_type out."
            )

    def check_ranks(self, path: Path, where: object) -> None:
        """Raises ConfigError where the engine at `path` was built for other numbers of ranks than are said."""
        if not is_engine(path):
            return
        sizes, fields = self.options.build, fastertransformer.SIZES
        engine = EngineDir.without_weights(path)
        own = {field: getattr(engine.build, field) for field in fields.values()}
        other = {name: sizes[field] for name, field in fields.items() if sizes.get(field, own[field]) != own[field]}
        if not other:
            return
        said = ", ".join(f"{name} is {size}" for name, size in other.items())
        has = ", ".join(f"{field} {size}" for field, size in own.items())
        asked = {fields[name]: size for name, size in other.items()}
        raise ConfigError(
            f"{where}: {said}, and the engine {path} was built for {has}; write these sizes, or rebuild it:"
            f" {rebuild_command(engine, asked)}."
        )


def _options(config: Any, words: Mapping[str, str]) -> LoadOptions:
    own = options_from_words({name: word for name, word in words.items() if name in PARAMETERS})
    build: dict[str, Any] = {"max_batch_size": _batch_size(config)} if _batch_size(config) else {}
    if dtype := words.get("data_type"):
        build["dtype"] = fastertransformer.DTYPES[dtype]
    build |= fastertransformer.ranks(words)
    device = config_fields.device(config)
    encoder_only = words.get("model_type") == fastertransformer.ENCODER
    return own.overridden_by(LoadOptions(build, {"device": device} if device else {}, encoder_only))


def _batch_size(config: Any) -> int:
    """Returns how many sequences are decoded at once; 0: as the server has it. FasterTransformer's says how many rows a
    request may have, in its published files 1024."""
    if config.backend == fastertransformer.BACKEND and config.max_batch_size >= BuildConfig.max_batch_size:
        return 0
    return max(1, config.max_batch_size)  # Triton's 0: no batches


def _unknown_parameters(words: Mapping[str, str], backend: str) -> list[str]:
    names = {
        *PARAMETERS,
        *fastertransformer.NAMES,
        *fastertransformer.NEUTRAL,
        *(PYTHON if backend == "python" else ()),
    }
    unknown = sorted(words.keys() - names)
    if not unknown:
        return []
    return [f"{listed(unknown)} is no parameter here{nearest(unknown, names)}; there are {listed(sorted(names), 40)}"]


def _unknown_tensors(config: Any) -> list[str]:
    targets = [target for each in config.batch_input for target in each.target_name]
    return [
        *_unknown("input", (each.name for each in config.input), KNOWN_INPUTS | ft_tensors.INPUTS.keys()),
        *_unknown("batch_input", targets, set(ft_tensors.BATCH_INPUTS)),
        *_unknown("output", (each.name for each in config.output), KNOWN_OUTPUTS | ft_tensors.OUTPUTS.keys()),
    ]


def _unknown_steps(config: Any) -> list[str]:
    """Returns what to do with an ensemble whose tensors are those of other steps than vlm's."""
    if config.platform != "ensemble" or not _unknown_tensors(config):
        return []
    return [
        "the steps of an ensemble are not run one by one: leave its folder out, and its engine is served, which takes"
        " texts as text_input"
    ]


def _unknown(what: str, names: Iterable[str], allowed_names: set[str]) -> list[str]:
    unknown = [name for name in names if name not in allowed_names]
    return [f"{what} names {listed(unknown)}, which no model here has"] if unknown else []


def _datatypes(config: Any) -> dict[str, str]:
    return {output.name: _datatype(output) for output in config.output}


def _datatype(tensor: Any) -> str:
    name = type(tensor).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    word = name.removeprefix("TYPE_")
    return "BYTES" if word == "STRING" else word


def _notes(config: Any, options: LoadOptions) -> list[str]:
    lines = config_fields.notes(config)
    if not options.encoder_only and config.backend == fastertransformer.BACKEND and not _batch_size(config):
        lines.append(
            f"max_batch_size is {config.max_batch_size}: as many sequences are decoded at once as --max-batch-size says"
            f" (by default {BuildConfig.max_batch_size}), the others wait"
        )
    names = [output.name for output in config.output if output.name in ft_tensors.OUTPUTS]
    return [*lines, *(f"output {name}: {ft_tensors.OUTPUTS[name]}" for name in names)]


def checked_path(path: str, where: object) -> Path:
    """Returns model_checkpoint_path as a folder or file that is there. Raises ConfigError."""
    file = user_path(path)
    if not os.path.exists(file):
        raise ConfigError(
            f"{where}: {fastertransformer.CHECKPOINT} is {path}, which is not there from {Path.cwd()}; give the path of"
            " an engine, a checkpoint or a Hugging Face folder."
        )
    return file
