"""A sampling option is one field: all that offers options has it then, and the page on options is up to date."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.checkout import ROOT
from vlm.artifacts.hugging_face.generation_config import FIELDS
from vlm.options import defaults_of, options_of
from vlm.requests.generation import NOT_APPLIED, without_effect
from vlm.requests.sampling_params import SamplingParams
from vlm_app.options_page import PARTS, page

# the field, in place of an edit of vlm/requests/sampling_options.py; then what everybody makes of it
TOY = """
import json
from dataclasses import dataclass
from vlm.options import Offer, option
from vlm.ranges import between
from vlm.requests import sampling_params

@dataclass(frozen=True)
class WithToy(sampling_params.SamplingParams):
    toy_factor: float = option(
        0.25, "Makes it a toy.", allowed=between(0, 1), openai=Offer(), kserve=Offer("runtime_toy"), section="Drawing",
        model_key="toy",
    )

sampling_params.SamplingParams = WithToy

from types import SimpleNamespace

import numpy as np
import typer.main
from pydantic import ValidationError
from typer.testing import CliRunner
from vlm.errors import InputError
from vlm.requests.generation import sampling_params as resolve
from vlm_app.cli.verbs import command_line
from vlm_app.options_page import PARTS, page
from vlm_app.server.openai.schema import ChatBody, CompletionBody
from vlm_app.server.tensors.inputs import _sampling
from vlm_app.server.tensors.parameters import check, with_options
from vlm_app.server.repository.triton_options import ExportConfig
from vlm_app.server.tensors.specs import IDS_IN
from vlm_app.triton.config import configs

def error(kind, function, *args, **values):
    try:
        function(*args, **values)
    except kind as found:
        return str(found)

of_texts = SimpleNamespace(takes_images=False, takes_text=True, takes_prompt=False)
model = SimpleNamespace(family=of_texts, vision=None, tokenizer="any", config=SimpleNamespace(cross_attention=True),
                        tasks=None, takes_question=False, prompt_tables=None)
triton = configs(model, ExportConfig("m", max_batch_size=1))
steps = triton["ensemble"]["ensemble_scheduling"]["step"]

help = CliRunner().invoke(command_line(), ["run", "--help"]).stdout
tensors = with_options({"input_ids": np.ones((2, 3), np.uint32)}, check({"runtime_toy": 0.5}).options)
chat = {"model": "m", "messages": [{}]}
print(json.dumps({
    "help": " ".join(help.split()),
    "exit": CliRunner().invoke(command_line(), ["run", "--text", "a", "--toy-factor", "2"]).stderr,
    "chat": ChatBody(**chat, toy_factor=0.5).sampling()["toy_factor"],
    "completions": CompletionBody(model="m", prompt="a", toy_factor=0.75).sampling()["toy_factor"],
    "schema": ChatBody.model_json_schema()["properties"]["toy_factor"]["anyOf"],
    "refused": error(ValidationError, ChatBody, **chat, toy_factor=2),
    "tensor": [spec.datatype for spec in IDS_IN if spec.name == "runtime_toy"],
    "rows": [_sampling({name: array[i] for name, array in tensors.items()})["toy_factor"] for i in range(2)],
    "triton": [part for part, config in triton.items() if any(x["name"] == "runtime_toy" for x in config["input"])],
    "step": [step["input_map"].get("runtime_toy") for step in steps],
    "model": resolve({}, {"toy": 0.125}, loop_detection=False).toy_factor,
    "request": resolve({"toy_factor": 0.5}, {"toy": 0.125}, loop_detection=False).toy_factor,
    "python": error(InputError, WithToy, toy_factor=-1.0),
    "page": [line for line in page().splitlines() if "toy" in line],
}))
"""


# the same of how an engine is run, in place of an edit of vlm/config/runtime.py
TOY_RUNTIME = """
import json
from dataclasses import dataclass
from vlm import config
from vlm.options import option
from vlm.ranges import between

@dataclass(frozen=True)
class WithToy(config.RuntimeConfig):
    toy_share: float = option(0.25, "A toy's share.", allowed=between(0, 1))
    toy_switch: bool = option(False, "Is it a toy?")

config.RuntimeConfig = WithToy

from typer.testing import CliRunner
from vlm.errors import ConfigError
from vlm_app.cli.verbs import command_line
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.triton_options import options_from_words, parameters_of

def error(words):
    try:
        options_from_words(words)
    except ConfigError as found:
        return str(found)

options = LoadOptions.from_dict({"toy_share": 0.5, "toy_switch": True})
written = {name: value["string_value"] for name, value in parameters_of(options).items()}
print(json.dumps({
    "help": " ".join(CliRunner().invoke(command_line(), ["run", "--help"]).stdout.split()),
    "config": options.runtime_config().toy_share,
    "triton": options_from_words(written).runtime == options.runtime,
    "errors": [error({"toy_share": "many"}), error({"toy_switch": "many"}), error({"toy_share": "2"})],
}))
"""


def found_by(script: str) -> dict[str, Any]:
    output = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=ROOT)
    return json.loads(output.splitlines()[-1])


def test_a_new_field_is_an_option_everywhere():
    found = found_by(TOY)
    assert "--toy-factor <float> Makes it a toy. [default: 0.25]" in found["help"]
    assert found["exit"] == "vlm: --toy-factor is 2.0; it must lie in [0, 1].\n"
    assert (found["chat"], found["completions"]) == (0.5, 0.75)
    assert {"maximum": 1.0, "minimum": 0.0, "type": "number"} in found["schema"]
    assert "less than or equal to 1" in found["refused"]
    assert found["tensor"] == ["FP32"] and found["rows"] == [0.5, 0.5]
    assert found["triton"] == ["ensemble", "engine"] and found["step"] == [None, "runtime_toy", None]
    assert (found["model"], found["request"]) == (0.125, 0.5)
    assert found["python"] == "toy_factor is -1.0; it must lie in [0, 1]."
    assert found["page"] == ["| `toy_factor` | `--toy-factor` | `toy_factor` | `runtime_toy` | `toy` | 0.25 | [0, 1] |"
                             " Makes it a toy. |"]  # fmt: skip


def test_a_new_field_of_the_runtime_is_an_option_of_verbs_and_of_exported_engines():
    found = found_by(TOY_RUNTIME)
    assert "--toy-share <float> A toy's share. [default: 0.25]" in found["help"] and "--toy-switch" in found["help"]
    assert found["config"] == 0.5 and found["triton"]
    assert found["errors"] == [
        "the parameter toy_share is 'many'; it must be a number.",
        "the parameter toy_switch is 'many'; it must be true or false.",
        "toy_share is 2.0, it must lie in [0, 1].",
    ]


def test_every_field_of_a_request_is_an_option():
    assert options_of(SamplingParams).keys() == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize("config", [SamplingParams, *(config for *_, config in PARTS)])
def test_defaults_are_allowed(config):
    """They are not looked at when one is made."""
    for name, value in defaults_of(config).items():
        option = options_of(config)[name]
        assert value is None or option.allowed is None or option.allowed.error(value) is None, name
        if option.check is not None:
            option.check(value)


def test_what_a_model_may_set_is_read_of_its_folder():
    """Every key that transformers reads and that changes the tokens is a setting, or known not to be applied."""
    keys = {own.model_key for own in options_of(SamplingParams).values() if own.model_key}
    ours = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "do_sample"}
    assert keys | NOT_APPLIED.keys() | ours == FIELDS and not keys & NOT_APPLIED.keys()


def test_the_page_on_options_is_up_to_date():
    written = (ROOT / "docs" / "options.md").read_text("utf-8")
    assert written == page(), "write it again: python -m vlm_app.options_page > docs/options.md"


@pytest.mark.parametrize(("model", "idle"), [
    ({}, {"temperature": ["top_p"], "num_beams": ["length_penalty"]}),
    ({"do_sample": True}, {"num_beams": ["length_penalty"]}),
    ({"num_beams": 4}, {"temperature": ["top_p"]}),
])  # fmt: skip
def test_what_the_model_sets_gives_effect_to_what_a_request_says(model, idle):
    assert without_effect({"top_p": 0.5, "length_penalty": 2.0, "top_k": 0}, model) == idle
    assert without_effect({"temperature": 0.5, "top_p": 0.5}, model) == {}
