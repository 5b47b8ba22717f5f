"""Options that verbs share, made of the fields of configurations: a field with an Option is an option of each verb."""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from vlm.backends.installed import checked_backend
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import InputError
from vlm.options import Option, default_flag, defaults_of, options_of, without_none
from vlm.requests.sampling_params import SamplingParams
from vlm_app.cli.options.empty_paths import check_paths
from vlm_app.cli.options.model_place import saying_where_models_stand
from vlm_app.cli.options.other_names import with_known_names
from vlm_app.cli.options.several import with_each_flag
from vlm_app.core import load_options, renamed
from vlm_app.core.backend_names import described_backends, described_quantizations
from vlm_app.core.load_options import AdapterFolders, LoadOptions


@dataclass(frozen=True)
class Group:
    """Fields that verbs take as options under one title, and what becomes of their values."""

    title: str | None  # None: with the verb's own
    options: Mapping[str, Option]  # by their fields' names
    types: Mapping[str, Any]  # the fields'
    make: Callable[[dict[str, Any]], Any]  # the values on the command line -> what the verb gets

    @classmethod
    def from_fields(cls, title: str | None, make: Callable[[dict[str, Any]], Any], *configs: type) -> Group:
        """Takes every field of the dataclasses that is an option of the command line; a later one's stand for those of
        one name."""
        options, kinds = {}, {}
        for config in configs:
            hints, defaults = typing.get_type_hints(config), defaults_of(config)
            own = {name: option for name, option in options_of(config).items() if option.cli}
            options |= {name: _with_default(option, defaults[name]) for name, option in own.items()}
            kinds |= {name: hints[name] for name in own}
        return cls(title, options, kinds, make)

    @classmethod
    def making(cls, config: type) -> Group:
        """Returns the options of a dataclass, of which one is made for the verb."""
        return cls.from_fields(None, lambda values: config(**values), config)

    def only(self, *names: str) -> Group:
        """Returns the group with these fields alone, in this order."""
        return replace(self, options={name: self.options[name] for name in names})

    def without(self, *names: str) -> Group:
        """Returns the group without these fields."""
        return self.only(*(name for name in self.options if name not in names))

    def changed(self, **changes: dict[str, Any]) -> Group:
        """Returns the group with other flags, help or defaults of some options."""
        return replace(self, options={n: replace(o, **changes.get(n, {})) for n, o in self.options.items()})

    def parameters(self) -> list[inspect.Parameter]:
        """Returns what typer makes options of."""
        return [self._parameter(name, option) for name, option in self.options.items()]

    def read(self, values: Mapping[str, Any]) -> Any:
        """Makes of what typer found what the verb gets. Raises a VlmError for a value that is not allowed, and for a
        variable that is empty, such as a secret that was not found: typer takes it for none."""
        entries = {name: values[name] for name in self.options if values[name] not in (None, [])}
        unset = [option.env for name, option in self.options.items() if option.env and name not in entries]
        if empty := [name for name in unset if os.environ.get(name) == ""]:
            raise InputError(f"{empty[0]} is empty; give it a value, or unset it.")
        return self.make({name: self._value(name, value) for name, value in entries.items()})

    def _value(self, name: str, value: Any) -> Any:
        reader = self.options[name].read
        return tuple(value) if isinstance(value, list) else reader(value) if reader else value

    def _parameter(self, name: str, option: Option) -> inspect.Parameter:
        kind, is_list = _kind(self.types[name]) if option.read is None else (option.cli_type, False)
        again = is_list and "again for more" not in option.help and "repeat it" not in option.help
        words = [option.help, "Repeat it for more." * again, f"[default: {option.default}]" * bool(option.default)]
        info = typer.Option(
            *(option.flags or (default_flag(name),)), help=" ".join(filter(None, words)), envvar=option.env,
            metavar=option.metavar, rich_help_panel=self.title,
        )  # fmt: skip
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None,
            annotation=Annotated[(list[kind] if is_list else kind) | None, info],
        )  # fmt: skip


def _with_default(option: Option, default: Any) -> Option:
    is_complete = option.default or default is None or default == () or isinstance(default, bool)
    return option if is_complete else replace(option, default=str(default))


def _kind(hint: Any) -> tuple[type, bool]:
    """Returns an option's type for a field's, and whether it is repeated. TypeError for a type that needs `read`."""
    hint = without_none(hint)
    is_list = typing.get_origin(hint) is tuple
    kind = typing.get_args(hint)[0] if is_list else hint
    if kind not in (int, float, str, bool, Path):
        raise TypeError(f"an option of type {hint} needs a function that reads it")
    return kind, is_list


def _flag_of(parameter: inspect.Parameter) -> str | None:
    """Returns the long flag of a verb's own parameter; None: it is no option."""
    kinds = typing.get_args(parameter.annotation)
    info = next((each for each in kinds if isinstance(each, OptionInfo)), None)
    if info is None:
        return None
    return next((flag for flag in info.param_decls or () if flag.startswith("--")), default_flag(parameter.name))


def takes(**groups: Group) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a verb: each of these parameters of it stands for a group's options, and gets what they become."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(verb, eval_str=True)
        parts = ((groups[p.name].parameters() if p.name in groups else [p]) for p in own.parameters.values())
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in parts for p in part]
        flags = {p.name: flag for p in own.parameters.values() if (flag := _flag_of(p)) is not None}
        for group in groups.values():
            for name, option in group.options.items():
                flags |= dict.fromkeys((name, *option.sets), option.flag(name))

        def call(**values: Any) -> Any:
            renamed.flags.set(flags)
            arguments = {name: group.read(values) for name, group in groups.items()}
            group_options = {name for group in groups.values() for name in group.options}
            return verb(**{name: value for name, value in values.items() if name not in group_options}, **arguments)

        wrapper: Any = functools.wraps(verb)(call)
        wrapper.__signature__ = own.replace(parameters=parameters)
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


class GroupedCommand(TyperCommand):
    """A command whose help lists options under the titles of their groups, and some of whose flags several values may
    follow."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        metavars = {flag: parameter.metavar for parameter in self.params for flag in parameter.opts}
        flags = {*metavars, *(flag for parameter in self.params for flag in parameter.secondary_opts)}
        words = with_each_flag(with_known_names(args, flags), metavars)
        with saying_where_models_stand(ctx, words):
            rest = super().parse_args(ctx, [*words])
        check_paths(ctx, words)
        return rest

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:
        titles: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            title = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if (record := parameter.get_help_record(ctx)) is not None:
                titles.setdefault(getattr(parameter, "rich_help_panel", None) or title, []).append(record)
        for title, records in titles.items():
            with formatter.section(title):
                formatter.write_dl(records)


def checked_sampling(values: dict[str, Any]) -> dict[str, Any]:
    """Returns sampling options. Raises InputError, before a model is loaded, for what is wrong with them whatever the
    model's own settings are."""
    count = values.get("num_return_sequences", 1)
    own_beams = {} if values.get("temperature") else {"num_beams": count}  # the model's may be as many
    SamplingParams(**{**own_beams, **values})
    return values


RUNTIME = Group.making(RuntimeConfig)
SAMPLING = Group.from_fields("Decoding", checked_sampling, SamplingParams)


def checked_build(values: dict[str, Any]) -> BuildConfig:
    """Raises ConfigError for a build that the backend never makes."""
    checked_backend(build := BuildConfig(**values))
    return build


BUILD = Group.from_fields("Engine", checked_build, BuildConfig).changed(
    backend={"help": f"What runs it: {described_backends()}."},
    quantization={"help": f"Of the weights: {described_quantizations()}."},
)
_when_unset = {
    "dtype": "as built, or float32 on the CPU and bfloat16 on CUDA",
    "max_batch_size": f"as built, or {BuildConfig.max_batch_size}",
    "max_seq_len": "as built, or what the model was made for",
    "max_encoder_input_len": "as built, or what the model takes",
    "backend": "as built, or torch",
}
SERVING = (  # of a server, whose requests may have adapters and name tasks
    Group.from_fields("Engine", LoadOptions.from_dict, RuntimeConfig, BuildConfig, AdapterFolders)
    .only("device", "devices", *load_options.BUILD, *load_options.RUNTIME[2:], "lora_dir")
    .changed(**{name: {"default": words} for name, words in _when_unset.items()})
    .changed(
        dtype={"help": BUILD.options["dtype"].help.replace(", and that of the weights", "")},
        backend={"help": f"What runs it: {described_backends()}, or auto: what suits this machine."},
    )
)
LOADING_ADAPTERS = SERVING.without("prompt_table")  # of verbs that run one engine, whose inputs may have adapters
# of jobs, whose inputs have all the same one; they say themselves on which devices
LOADING_ADAPTER = LOADING_ADAPTERS.without("devices", "max_loras", "max_cpu_loras", "max_lora_rank")
LOADING = LOADING_ADAPTER.without("lora", "lora_dir")
