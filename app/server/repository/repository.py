"""A model repository as Triton has it: NAME/config.pbtxt (or none) and NAME/VERSION/ with an engine or a model folder.

https://github.com/triton-inference-server/server: docs/user_guide/model_repository.md
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from vlm.artifacts.native.manifest import MANIFEST
from vlm.artifacts.progress import Progress
from vlm.errors import ConfigError, ModelNotFoundError, VlmError
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository import pbtxt
from vlm_app.server.repository.fastertransformer import BACKEND, CHECKPOINT, FOLDER
from vlm_app.server.repository.files import Tree
from vlm_app.server.repository.served_config import ServedConfig, checked_path
from vlm_app.server.repository.triton_options import CONFIG, ENGINE_FOLDER, FRONTEND_FOLDER

PROGRAM = "model.py"  # of Triton's Python backend
SIGNS = (MANIFEST, "config.json", "config.ini")  # of an engine; a checkpoint or Hugging Face folder; what is refused


@dataclass(frozen=True)
class Entry:
    """One model of a repository, as it lies there."""

    name: str  # of its folder
    version: str
    place: PurePosixPath  # of the engine or model folder
    tree: Tree
    config: ServedConfig = field(default_factory=ServedConfig)

    @property
    def where(self) -> Path:
        """Its configuration."""
        return self.tree.root / self.name / CONFIG

    @property
    def options(self) -> LoadOptions:
        """Returns what its configuration says of its loading."""
        return self.config.options

    @property
    def adapters(self) -> list[str]:
        """Returns the names of its adapters."""
        return list(self.options.runtime_config().lora_folders)

    def local_options(self, progress: Progress | None = None) -> LoadOptions:
        """Returns the same with adapters on this disk. Raises ConfigError for one that is not in the repository."""
        return self.options.with_adapters_at(lambda folder: self._local_adapter(folder, progress))

    def _local_adapter(self, folder: str, progress: Progress | None) -> Path:
        if Path(folder).is_absolute():
            return Path(folder)
        if not self.tree.holds(at := PurePosixPath(folder)):
            raise ConfigError(f"{self.where}: lora names {folder}, which is not in {self.tree.root}; put it there.")
        return self.tree.local(at, progress)

    @property
    def service_options(self) -> dict[str, Any]:
        """Returns what a Service is told of it."""
        config = self.config
        return {"version": self.version, "decoupled": config.decoupled, "datatypes": config.datatypes}

    @property
    def stamp(self) -> str:
        """Changes with its files, those of its adapters, and its version."""
        places = (self.place, *map(PurePosixPath, self.options.runtime_config().lora_folders.values()))
        return "-".join((*map(self.tree.stamp, places), str(self.config)))

    def fetched(self, progress: Progress | None = None) -> Path:
        """Returns the folder on this disk. Raises ConfigError where its configuration names one that is not there."""
        if self.config.checkpoint:
            return checked_path(self.config.checkpoint, self.where)
        return self.tree.local(self.place, progress)


def scan(url: str) -> dict[str, Entry | VlmError]:
    """Returns every model of a repository by its name, or why it cannot be served, in a sentence.

    An ensemble is served by the engine among its steps, which reads texts too; its parts are no models of their own.
    Raises InputError for a repository that cannot be reached.
    """
    tree = Tree.from_url(url)
    configs = {name: _tried(lambda name=name: _config(tree, name)) for name in tree.folders(PurePosixPath())}
    parts = {step for config in configs.values() for step in _steps(config)}
    whole = {name: config for name, config in configs.items() if name not in parts}
    return {name: _tried(lambda name=name: _entry(tree, name, configs)) for name in whole}


def _tried(make: Any) -> Any:
    try:
        return make()
    except VlmError as error:
        return error


def _config(tree: Tree, name: str) -> Any:
    """Returns a ModelConfig; None where there is no file."""
    at = PurePosixPath(name, CONFIG)
    return pbtxt.parse(tree.text(at), tree.root / name / CONFIG) if at in tree.stamps else None


def _steps(config: Any) -> list[str]:
    """Returns the names of an ensemble's models."""
    if config is None or isinstance(config, VlmError) or config.platform != "ensemble":
        return []
    return [step.model_name for step in config.ensemble_scheduling.step]


def _entry(tree: Tree, name: str, configs: dict[str, Any]) -> Entry:
    config = configs[name]
    if isinstance(config, VlmError):
        raise config
    if not (steps := _steps(config)):
        if config is not None and config.backend == BACKEND:  # what it cannot have comes before what is not there
            _served(tree, name, config)
        version = _version(tree, name, config)
        return _single(tree, name, version, config)
    outcomes = [_tried(lambda step=step: _step(tree, step, configs)) for step in steps]
    engines = [entry for entry in outcomes if isinstance(entry, Entry)]
    if errors := [error for error in outcomes if isinstance(error, ConfigError)]:
        raise errors[0]
    if len(engines) != 1:
        raise ModelNotFoundError(
            f"{tree.root / name} is an ensemble with {len(engines)} engines of vlm among its steps; it needs one."
        )
    [engine] = engines
    whole = engine.config.within(_served(tree, name, config))
    return Entry(name, _version(tree, name, config), engine.place, tree=tree, config=whole)


def _single(tree: Tree, name: str, version: str, config: Any) -> Entry:
    """Returns a model that is no ensemble. What is in its folder is looked at first: a step of an ensemble may be any
    model."""
    folder = PurePosixPath(name, version)
    filename = "" if config is None else config.default_model_filename
    place = folder if _names_checkpoint(config) else _place(tree, folder, filename or FOLDER)
    served_config = ServedConfig() if config is None else _served(tree, name, config)
    return Entry(name, version, place, tree=tree, config=served_config)


def _served(tree: Tree, name: str, config: Any) -> ServedConfig:
    """Reads a model's configuration, whose adapters lie in the model's folder."""
    served_config = ServedConfig.from_proto(config, tree.root / name / CONFIG)
    in_repository = lambda folder: posixpath.normpath(posixpath.join(name, folder))  # noqa: E731
    return replace(served_config, options=served_config.options.with_adapters_at(in_repository))


def _names_checkpoint(config: Any) -> bool:
    """Says whether the model is elsewhere than in the version's folder."""
    return config is not None and CHECKPOINT in config.parameters and bool(config.parameters[CHECKPOINT].string_value)


def _step(tree: Tree, name: str, configs: dict[str, Any]) -> Entry:
    if name not in configs or _steps(configs[name]):
        raise ModelNotFoundError(f"{tree.root} holds no model {name} that is no ensemble itself.")
    return _entry(tree, name, configs)


def _version(tree: Tree, name: str, config: Any) -> str:
    """Returns the latest of those that the model's policy allows."""
    versions = [v for v in tree.folders(PurePosixPath(name)) if v.isdecimal() and not v.startswith("0")]
    if config is not None and config.version_policy.WhichOneof("policy_choice") == "specific":
        versions = [v for v in versions if int(v) in config.version_policy.specific.versions]
    if not versions and config is not None and _names_checkpoint(config) and not config.HasField("version_policy"):
        return "1"  # its folder may be empty, and is not seen then
    if not versions:
        raise ModelNotFoundError(f"{tree.root / name} holds no version to serve; put the model into {name}/1/.")
    return max(versions, key=int)


def _place(tree: Tree, version: PurePosixPath, filename: str) -> PurePosixPath:
    """Returns where in a version's folder the model is; `filename`: where it may be, too."""
    inner = tree.folders(version)
    only = [version / inner[0]] if len(inner) == 1 and inner[0] != FRONTEND_FOLDER else []
    places = [version / ENGINE_FOLDER, version / filename, version, *only]
    if (place := next((p for p in places if any(p / sign in tree.stamps for sign in SIGNS)), None)) is None:
        folder = tree.root.joinpath(*version.parts)
        if version / PROGRAM in tree.stamps:
            raise ModelNotFoundError(
                f"{folder / PROGRAM} is a program of Triton's Python backend, and none is run here; models take texts"
                " as text_input themselves, so leave it out."
            )
        raise ModelNotFoundError(f"{folder} holds no engine and no Hugging Face folder; put its files there.")
    return place
