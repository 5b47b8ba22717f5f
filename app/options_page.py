"""docs/options.md: every option with its names, defaults and values, as the fields of the configurations have them.

python -m vlm_app.options_page > docs/options.md
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from vlm.config import BuildConfig, RuntimeConfig
from vlm.options import Option, defaults_of, flag_of, options_of
from vlm.quantize.config import QuantizeConfig
from vlm.requests.sampling_options import MODELS
from vlm.requests.sampling_params import SamplingParams
from vlm_app.cli.options.groups import BUILD
from vlm_app.core.load_options import AdapterFolders
from vlm_app.demo.config import DemoConfig
from vlm_app.ocr.config import EstimateConfig, JobConfig, PlaceConfig
from vlm_app.quantize.config import InputsConfig
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas.config import ReplicaConfig

HEAD = """# Options

Written by `python -m vlm_app.options_page > docs/options.md` from the fields' own metadata; a test compares. To add an
option, add its field (`vlm/requests/sampling_options.py`, `vlm/config/runtime.py`, …): the command line, the servers'
requests and this page have it then.
"""
SAMPLING = """## Of a request

Fields of `SamplingParams`, which `Pipeline.generate` takes as keywords. Where a column is empty, an option is not
offered. *OpenAI*: the field of `/v1/chat/completions` and `/v1/completions` (a second name is the latter's), and the
numbers that it takes where these are others. *KServe*: the tensor or parameter of `/v2` (FasterTransformer's names).
*The model's*: the key of `generation_config.json` that sets the default. What else the servers' protocols take is in
[serving.md](serving.md).
"""
LOADING = "every verb that loads a model"
PARTS = (
    ("## How an engine is run\n\nFields of `RuntimeConfig`", LOADING, RuntimeConfig),
    ("Fields of `AdapterFolders`", "verbs that take `--lora`", AdapterFolders),
    ("## What an engine is built for\n\nFields of `BuildConfig`", f"`vlm build`, and partly {LOADING}", BuildConfig),
    ("## How weights are quantized\n\nFields of `QuantizeConfig`", "`vlm quantize`", QuantizeConfig),
    ("Fields of `InputsConfig`: what it is calibrated and compared on", "`vlm quantize`", InputsConfig),
    ("## A server\n\nFields of `ServerConfig`", "`vlm serve`", ServerConfig),
    ("Fields of `ReplicaConfig`: the processes behind its port", "`vlm serve`", ReplicaConfig),
    ("## The demo\n\nFields of `DemoConfig`", "`vlm demo`", DemoConfig),
    ("## Documents\n\nFields of `JobConfig`: what is read and how it is written", "`vlm ocr`", JobConfig),
    ("Fields of `EstimateConfig`: what is read to tell how long a job takes", "`vlm estimate`", EstimateConfig),
    ("Fields of `PlaceConfig`: where a job runs", "`vlm ocr`", PlaceConfig),
)


def page() -> str:
    """Returns the page, in markdown."""
    parts = [HEAD, SAMPLING, *_sampling()]
    for title, verbs, config in PARTS:
        rows = [(f"`{name}`", _flag(config, name), *_said(config, name)) for name in options_of(config)]
        parts.append(f"{title}; of {verbs}.\n\n{_table(('field', 'command line', 'default', 'allowed', ''), rows)}")
    return "\n".join(parts)


def _sampling() -> Iterator[str]:
    """Yields a section's title and table at a time."""
    columns = ("field", "command line", "OpenAI", "KServe", "the model's", "default", "allowed", "")
    names = options_of(SamplingParams)
    sections = list(dict.fromkeys(own.section for own in names.values()))
    options = sorted(names.items(), key=lambda item: sections.index(item[1].section))
    for section, items in groupby(options, key=lambda item: item[1].section):
        rows = [(f"`{n}`", _flag(SamplingParams, n), *_offers(n, own), *_said(SamplingParams, n)) for n, own in items]
        yield f"### {section}\n\n{_table(columns, rows)}"


def _offers(name: str, option: Option) -> tuple[str, str, str]:
    """Returns what OpenAI's bodies, KServe's requests and generation_config.json call a setting."""
    openai = _codes([option.openai.name or name, option.openai.completions]) if option.openai else ""
    limits = f" in {option.openai.allowed}" if option.openai and option.openai.allowed else ""
    return openai + limits, _codes([option.kserve.name or name]) if option.kserve else "", _codes([option.model_key])


def _flag(config: type, name: str) -> str:
    own = options_of(config)[name]
    return _codes(own.flags or [flag_of(config, name)]) if own.cli else ""


def _said(config: type, name: str) -> tuple[str, str, str]:
    """Returns the default, the values that are allowed, and what the option does."""
    own = BUILD.options[name] if config is BuildConfig else options_of(config)[name]  # BUILD knows what is installed
    return _default(config, name), "" if own.allowed is None else str(own.allowed), own.help


def _default(config: type, name: str) -> str:
    own, [field] = options_of(config)[name], [f for f in dataclasses.fields(config) if f.name == name]
    if field.default_factory is not dataclasses.MISSING:
        return own.default or "by the machine"
    value: Any = defaults_of(config)[name]
    text = "none" if value is None or value == () else str(value).lower() if isinstance(value, bool) else str(value)
    return f"{MODELS}, or {text}" if own.default == MODELS else own.default or text


def _codes(words: Iterable[str | None]) -> str:
    return ", ".join(f"`{word}`" for word in words if word)


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    body = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    lines = [columns, tuple("---" for _ in columns), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
