"""What a package brings to the registry: specs of networks and families, names of converters (no torch)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from vlm.config import Config
from vlm.errors import ConfigError, InputError, cut
from vlm.limits import MAX_LAYERS
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.page_steps import PageSteps
from vlm.registry.tasks import PromptTasks
from vlm.registry.tokenizer_rules import ReadRules, no_rules

if TYPE_CHECKING:
    from vlm.layers.context import ModelContext


C = TypeVar("C", bound=Config)  # a network's own configuration


@dataclass(frozen=True)
class ModelSpec(Generic[C]):
    """All that one network needs: its configuration, its module and its weight rules."""

    name: str
    config: type[C]
    parse: Callable[[dict[str, Any]], C]  # Hugging Face config -> ours; ConfigError names every unsupported field
    # its torch.nn.Module, whose state_dict names are the rules' targets
    module: Callable[[C, ModelContext], Any]
    rules: Callable[[C], list[Any]]  # weight rules (vlm.convert.rules)
    # what only the weights tell (tied or not, a bias that is there): config and tensors by name -> config
    config_from_weights: Callable[[C, Mapping[str, Any]], C] = lambda config, tensors: config

    def skeleton(self, config: C, context: ModelContext | None = None) -> Any:
        """Returns the module on torch's meta device: shapes and types alone. `context` None: a whole network, whose
        weights are as they are."""
        from vlm.layers.context import ModelContext
        from vlm.layers.linear import keep_weights
        from vlm.registry.skip_init import skeleton

        if (layers := config.depth_in_all) > MAX_LAYERS:
            number = cut(f"{layers:,}")
            raise ConfigError(
                f"the {self.name} network would have {number} layers, the limit is {MAX_LAYERS:,}; its config.json is"
                " not the one that it was published with: fetch it again."
            )
        context = context or ModelContext()
        return skeleton(lambda: keep_weights(self.module(config, context), context.quantization))

    def loaded(self, config: C, weights: Mapping[str, Any], device: Any, context: ModelContext | None = None) -> Any:
        """Returns the module with these weights, ready to run; nothing is initialized twice. RuntimeError where they
        do not fit."""
        module = self.skeleton(config, context)
        module.load_state_dict(weights, strict=True, assign=True)
        if hasattr(module, "init_buffers"):
            module.init_buffers(device)
        return module.eval().requires_grad_(False)


def _named(target: str) -> Any:
    """Imports what `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class ModelRef:
    """Names a ModelSpec without importing it: `module:attribute`."""

    name: str
    target: str

    def load(self) -> ModelSpec:
        return _named(self.target)


@dataclass(frozen=True)
class ConverterRef:
    """Names what converts another program's folders or files, without importing it."""

    name: str  # the kind of model: "fairseq"
    program: str  # whose models it converts, in words: "FairSeq"
    target: str  # `module:function`, (path, out, *, progress, check) -> Checkpoint, or what else was `tuned`
    matches: Callable[[Path], bool]  # is this folder or file, which exists, one of them?
    options: tuple[str, ...] = ()  # keywords of its own: "tokenizer"; "tuned": may it be beside a model, and no model?
    # `module:function` of one that takes what was "tuned": path -> "tuned prompts" or "an adapter"; None: a model
    holds: str | None = None

    def load(self) -> Callable[..., Any]:
        return _named(self.target)

    def beside_model(self, path: Path) -> str | None:
        """Returns what was tuned beside a model, where a folder or file is that; None where it is a model. Raises
        CheckpointError and ConfigError for what is none of both."""
        return None if self.holds is None else _named(self.holds)(path)


@dataclass(frozen=True)
class Role:
    """One network of a family and where a Hugging Face folder keeps it."""

    model: str  # a ModelRef's name
    config_key: str | None = None  # sub-config in config.json; None: the whole
    weight_prefix: str = ""  # "encoder." for `encoder.embeddings…`
    shared_tensors: tuple[str, ...] = ()  # tensors without that prefix which this role takes too,
    shared_prefix: str = ""  # … and what their names lose
    # which weights Hugging Face's class runs as compressed-tensors keeps them; not with "unpacked" those of words of 32
    # bits. Before a decoder it runs none.
    hf_runs: Literal["all", "unpacked", "none"] = "all"
    # is the head tied where config.json names no tie_word_embeddings? True outside of the sub-config holds for it, too;
    # None: the sub-config alone is read
    tied: bool | None = None


@dataclass(frozen=True)
class ChatFormat:
    """How a family of chat models reads its prompts and conversations."""

    images: str = "inline"  # where an image stands: "inline", at its placeholder, or "first", before the text
    template: str | None = None  # Jinja, of a conversation, where the model's folder has none
    placeholder: str = "<image>"  # what its templates write where an image stands; questions say <image>
    # an image's grid -> the text that stands for it, a placeholder in it for each of its tiles, which have equally many
    # rows; None: its rows follow one another
    image_text: Callable[[tuple[int, ...] | None], str] | None = None
    question: Callable[[str], str] | None = None  # a prompt -> what the model reads, where that is no conversation


@dataclass(frozen=True)
class FamilySpec:
    """What users call a model: the networks it is made of, how to know it, and what goes in and comes out."""

    name: str
    summary: str
    roles: Mapping[str, Role]  # "visual" | "encoder" | "decoder"
    matches: Callable[[dict[str, Any]], bool]  # is this Hugging Face config.json of this family?
    inputs: tuple[str, ...]  # ("image",), ("text",), ("image", "text")
    chat_format: ChatFormat | None = None  # of decoders alone and of models that take images in a text
    # of every tensor's name but the heads'; a checkpoint saved as the base model alone has none: it gets the first
    base_prefixes: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)  # how names of other releases begin -> how those do here
    image_processors: tuple[ImageProcessorSpec, ...] = ()  # the first one where the folder does not say
    tokenizer_rules: ReadRules = no_rules  # what a tokenizer.json does not say
    # (folder, its tokenizer_config.json) -> files by name for a folder without tokenizer.json: that, and where outputs
    # have ids of their own a tokenizer_target.json; None: in one of the usual ways
    make_tokenizer: Callable[[Path, Mapping[str, Any]], Mapping[str, str] | None] = lambda folder, settings: None
    tokenizer_files: tuple[str, ...] = ()  # patterns of files that it makes one of, beyond those that many models have
    # special tokens that a tokenizer.json may lack, whose ids follow its last one in this order
    added_tokens: tuple[str, ...] = ()
    # (config.json, what the folder says of generation) -> what holds, where a publication's own code differs
    generation_settings: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]] = lambda config, said: said
    postprocess: Callable[[str], str] = str  # what the model wrote -> what users read
    prompt_tasks: PromptTasks | None = None  # that it is told of in prompts, each with answers of its own
    reads_prompt: bool = False  # is what it wrote read together with where it began?
    loop_detection: bool = False  # on by default for the family's requests
    # what models whose names begin so are asked of a page of a document, as they were trained
    page_prompts: Mapping[str, str] = field(default_factory=dict)
    page_steps: tuple[PageSteps, ...] = ()  # of publications that read a page by its parts, where no prompt is given
    architectures: Mapping[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)  # published shapes by name

    def __post_init__(self) -> None:
        if "visual" in self.roles and not self.image_processors:
            raise ValueError(f"the family {self.name} has a visual role, but no image processor")

    @property
    def takes_images(self) -> bool:
        return "image" in self.inputs

    @property
    def takes_text(self) -> bool:
        return "text" in self.inputs

    @property
    def takes_question(self) -> bool:
        """Says whether its models are given words about an image: drawn on it, or where the output begins."""
        return any(spec.takes_question for spec in self.image_processors)

    @property
    def takes_prompt(self) -> bool:
        """Says whether a model is given a prompt in words, about images or not."""
        return self.chat_format is not None

    def check_inputs(self, *, has_text: bool, has_image: bool) -> None:
        """Raises InputError for inputs of a kind that its models do not take."""
        if has_text and not self.takes_text:
            raise InputError(
                f"{self.name} has no text encoder, so it takes no texts; give images (`prompt` is where their output"
                " begins), or load a model of texts.",
                settings=("prompt",),
            )
        if has_image and not self.takes_images:
            raise InputError(f"{self.name} takes text, not images; leave the images out, or load another model.")
