"""Model families and where they come from: catalogs, found through the entry-point group `vlm.catalogs`.

A catalog is a light module (no torch) with tuples: `MODELS` of `ModelRef`, `FAMILIES` of `FamilySpec` and, where it has
any, `CONVERTERS` of `ConverterRef` and `UNSUPPORTED` of `vlm.registry.unsupported.Unsupported`. A package of its own may bring
another one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.config import Config
from vlm.errors import ConfigError, listed
from vlm.limits import MAX_LAYERS
from vlm.registry.unsupported import ROWS, ModelFiles, Unsupported, check_supported

if TYPE_CHECKING:
    from vlm.artifacts.checkpoint import Checkpoint
    from vlm.artifacts.engine_dir import EngineDir

CATALOG_GROUP = "vlm.catalogs"


@dataclass(frozen=True)
class ModelSpec:
    """All that one network needs: its configuration, its module and its weight rules."""

    name: str
    config: type[Config]
    parse: Callable[[dict[str, Any]], Config]  # Hugging Face config -> ours; ConfigError names every unsupported field
    module: Callable[[Any], Any]  # config -> torch.nn.Module whose state_dict names are the rules' targets
    rules: Callable[[Any], list[Any]]  # config -> weight rules (vlm.convert.rules)
    # what only the weights tell (tied or not, a bias that is there): config and tensors by name -> config
    adapt: Callable[[Any, Mapping[str, Any]], Any] = lambda config, tensors: config

    def skeleton(self, config: Config) -> Any:
        """The module on torch's meta device: shapes and types alone."""
        from vlm.registry.skip_init import skeleton

        if (layers := config.depth_in_all) > MAX_LAYERS:
            raise ConfigError(
                f"the {self.name} network would have {layers:,} layers, the limit is {MAX_LAYERS:,}; its config.json is"
                " not the one that it was published with: fetch it again."
            )
        return skeleton(lambda: self.module(config))

    def loaded(self, config: Config, weights: Mapping[str, Any], device: Any) -> Any:
        """The module with these weights, ready to run; nothing is initialized twice. RuntimeError where they do not
        fit."""
        module = self.skeleton(config)
        module.load_state_dict(weights, strict=True, assign=True)
        if hasattr(module, "init_buffers"):
            module.init_buffers(device)
        return module.eval().requires_grad_(False)


@dataclass(frozen=True)
class ModelRef:
    """Names a ModelSpec without importing it: `module:attribute`."""

    name: str
    target: str

    def load(self) -> ModelSpec:
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class ConverterRef:
    """Names what converts another program's folders or files, without importing it."""

    name: str  # the kind of model: "fairseq"
    target: str  # `module:function`, (path, out, *, progress) -> Checkpoint
    matches: Callable[[Path], bool]  # is this folder or file, which exists, one of them?
    options: tuple[str, ...] = ()  # keywords of its own: "tokenizer"

    def load(self) -> Callable[..., Any]:
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Role:
    """One network of a family and where a Hugging Face folder keeps it."""

    model: str  # a ModelRef's name
    config_key: str | None = None  # sub-config in config.json; None: the whole
    weight_prefix: str = ""  # "encoder." for `encoder.embeddings…`
    shared: tuple[str, ...] = ()  # tensors without that prefix which this role takes too,
    outer: str = ""  # … and what their names lose


@dataclass(frozen=True)
class PromptFormat:
    """How a family that is asked in words reads its prompts."""

    images: str = "inline"  # where an image stands: "inline", at its placeholder, or "first", before the text
    template: str | None = None  # Jinja, of a conversation, where the model's folder has none
    question: str | None = None  # how a whole sentence is put: "Question: {prompt} Answer:"


@dataclass(frozen=True)
class FamilySpec:
    """What users call a model: the networks it is made of, how to know it, and what goes in and comes out."""

    name: str
    summary: str
    roles: Mapping[str, Role]  # "visual" | "encoder" | "decoder"
    matches: Callable[[dict[str, Any]], bool]  # is this Hugging Face config.json of this family?
    inputs: tuple[str, ...]  # ("image",), ("text",), ("image", "text")
    prompt: PromptFormat | None = None  # of decoders alone and of models that take images in a text
    # of every tensor's name but the heads'; a checkpoint saved as the base model alone has none: it gets the first
    base_prefixes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)  # how names of other releases begin -> how those do here
    image_processor: str = "NougatImageProcessor"  # where the folder does not say
    postprocess: str | None = None  # `module:function`, text -> text
    loop_detection: bool = False  # on by default for the family's requests
    architectures: Mapping[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)  # published shapes by name


@functools.cache
def catalogs() -> tuple[Any, ...]:
    return tuple(entry.load() for entry in sorted(entry_points(group=CATALOG_GROUP), key=lambda e: e.name))


def families() -> dict[str, FamilySpec]:
    return {family.name: family for catalog in catalogs() for family in catalog.FAMILIES}


def family(name: str) -> FamilySpec:
    """Raises ConfigError for a name that no installed catalog brings."""
    known = families()
    if name not in known:
        raise ConfigError(f"model family {name!r} is unknown; installed are {listed(sorted(known), 40)}.")
    return known[name]


@functools.cache
def model_spec(name: str) -> ModelSpec:
    for catalog in catalogs():
        for ref in catalog.MODELS:
            if ref.name == name:
                return ref.load()
    raise ConfigError(f"model {name!r} is in no installed catalog; reinstall the package that brought it.")


def configs_of(model: Checkpoint | EngineDir) -> dict[str, Any]:
    """Every role's configuration, of the class that its network takes."""
    return {role: model_spec(name).config.from_dict(model.config(role)) for role, name in model.roles.items()}


def text_config(model: Checkpoint | EngineDir) -> Any:
    """Returns the configuration of what a request's ids are: the decoder's, or that of an encoder alone."""
    configs = configs_of(model)
    return configs.get("decoder", configs.get("encoder"))


def converter_of(path: Path) -> ConverterRef | None:
    """What converts this folder or file; None for a Hugging Face one and any other."""
    found = (ref for catalog in catalogs() for ref in getattr(catalog, "CONVERTERS", ()) if ref.matches(path))
    return next(found, None)


def unsupported() -> tuple[Unsupported, ...]:
    """Returns every kind of model that is known and not served; a catalog's own come before the common ones."""
    own = (row for catalog in catalogs() for row in getattr(catalog, "UNSUPPORTED", ()))
    return (*own, *ROWS)


def check_model(path: Path) -> None:
    """Raises UnsupportedModelError where a folder or file, which exists, is of a kind that is not served."""
    check_supported(ModelFiles.from_path(path), unsupported())


def match_family(config: dict[str, Any]) -> FamilySpec:
    """The family of a Hugging Face config.json; ConfigError when there is none."""
    check_supported(ModelFiles("this model", config=config), unsupported())
    for spec in families().values():
        if spec.matches(config):
            return spec
    if config.get("model_type") is None:
        raise ConfigError(
            "config.json names no model_type: it is not one that transformers wrote; give a model's that is."
        )
    raise ConfigError(
        f"model_type {config['model_type']!r} is not supported; families here are {listed(sorted(families()), 40)}."
    )


def architecture(name: str) -> tuple[FamilySpec, dict[str, Any]]:
    """A published shape (`nougat-base`) -> its family and Hugging Face config."""
    known = {arch: spec for spec in families().values() for arch in spec.architectures}
    if name not in known:
        raise ConfigError(f"architecture {name!r} is unknown; known are {listed(sorted(known), 40)}.")
    return known[name], known[name].architectures[name]()
