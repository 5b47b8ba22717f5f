"""Sentences about settings in their reader's words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vlm
import vlm_app
from tests.kits import cli_kit
from vlm.errors import ConfigError, EngineError, InputError
from vlm.executor import kv_cache
from vlm_app.bench.config import TextBenchConfig
from vlm_app.core import renamed


@pytest.mark.parametrize(("error", "says"), [
    (InputError("top_p is 3; it must lie in (0, 1].", settings=("top_p",)), "--top-p is 3; it must lie in (0, 1]."),
    (ConfigError("stop_at is 3, of stop.", settings=("stop",)), "stop_at is 3, of --stop."),
    (InputError("--stop is x; it must be y.", settings=("stop",)), "--stop is x; it must be y."),
    (InputError("it has a stop; give `stop`, as `top_k`.", settings=("stop", "top_k")),
     "it has a stop; give --stop, as `top_k`."),
    (ConfigError("/srv/stop/a was built for stop 3; give a/stop, or stop-3, stop 4.", settings=("stop",)),
     "/srv/stop/a was built for --stop 3; give a/stop, or stop-3, --stop 4."),
    (InputError("a top_p of 3 is no setting's."), "a top_p of 3 is no setting's."),
    (EngineError("device is 3.", settings=("device",)), "device is 3."),  # the verb has no such option
])  # fmt: skip
def test_settings_are_called_as_the_options_of_the_verb(error, says):
    before = renamed.flags.set({"top_p": "--top-p", "stop": "--stop"})
    try:
        assert renamed.with_flags(error) == says
    finally:
        renamed.flags.reset(before)


@pytest.mark.parametrize(("settings", "options", "says"), [
    ({"max_new_tokens": 10**6}, ("--max-new-tokens", 10**6),
     "ask for fewer, with {max_new_tokens} 511, or give {max_seq_len} 1000001, to vlm build where"),
    ({"num_beams": 30, "max_new_tokens": 2}, ("--num-beams", 30, "--max-new-tokens", 2),
     "ask for fewer, or give {max_batch_size} 30, to vlm build where"),
    ({"lora": 1}, ("--lora-task-uids", 1), "none is loaded; load one with {lora} NAME=FOLDER."),
    ({"prompt_lookup_num_tokens": 3}, ("--prompt-lookup-num-tokens", 3),
     "leave it out, or give {num_speculative_tokens} 3."),
])  # fmt: skip
def test_what_helps_is_called_as_its_reader_does(settings, options, says):
    names = ("max_new_tokens", "max_seq_len", "max_batch_size", "lora", "num_speculative_tokens")
    with pytest.raises(InputError) as refused:
        vlm.load("mini-t5", device="cpu").generate("a", **settings)
    assert says.format_map({name: name for name in names}) in str(refused.value)
    result = cli_kit.call("run", "--model", "mini-t5", "--device", "cpu", "--text", "a", *options)
    assert says.format_map({name: f"--{name.replace('_', '-')}" for name in names}) in result.stderr


PAGE = Path(vlm_app.__file__).parent / "demo" / "examples" / "page.png"


@pytest.mark.parametrize(("given", "says"), [
    (("--devices", "gpu"), "--devices names 'gpu'"), (("--devices", "cpu,gpu"), "--devices names 'gpu'"),
    (("--device", "gpu"), "--device is 'gpu'"), (("--device", "cpu:3"), "--device is 'cpu:3'"),
])  # fmt: skip
@pytest.mark.parametrize("line", [
    ("ocr", PAGE, "-o", "out"), ("estimate", PAGE), ("run", "--image", PAGE),
    ("generate", "a", "--model", "mini-llava"), ("serve", "mini-t5"), ("bench", "latency", "--model", "mini-t5"),
], ids=lambda line: line[0])  # fmt: skip
def test_a_name_of_no_device_is_said_to_be_of_its_option(line, given, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cli_kit.call(*line, *given)
    assert cli_kit.one_sentence(result) == f"vlm: {says}; allowed are auto, cpu, cuda and cuda:N."


@pytest.mark.parametrize("line", [
    ("run", "--text", "a"), ("translate", "a", "--src-lang", "en", "--tgt-lang", "de"), ("bench", "text", "--no-hf"),
], ids=lambda line: line[0])  # fmt: skip
def test_a_cache_that_does_not_fit_names_options_of_the_verb(line, monkeypatch):
    plan = kv_cache.plan_cache
    monkeypatch.setattr(kv_cache, "plan_cache", lambda *a, **given: plan(*a, **given | {"free_bytes": 1}))
    result = cli_kit.call(*line, "--model", "mini-t5", "--device", "cpu")
    said = cli_kit.one_sentence(result)
    assert "the KV cache has room for 0 self- and 0 cross-attention blocks" in said
    named, offered = re.findall(r"--[\w-]+", said), cli_kit.call(*line[: 1 + (line[0] == "bench")], "--help").stdout
    assert len(named) >= 3 and all(f"{flag} " in offered for flag in named) and "_" not in said


def test_a_benchmark_has_the_cache_that_it_is_told():
    fractions = {"kv_cache_free_gpu_memory_fraction": 0.5, "cross_kv_cache_fraction": 0.2}
    config = TextBenchConfig(model="mini-t5", **fractions)
    assert {name: getattr(config.runtime, name) for name in fractions} == fractions


def test_what_an_engine_does_not_serve_is_called_as_the_options_of_the_verb(tmp_path):
    engine = vlm.build_model("mini-t5", tmp_path / "engine", vlm.BuildConfig(max_batch_size=2))
    given = ("--max-batch-size", 3, "--dtype", "bfloat16", "--device", "cpu")
    result = cli_kit.call("run", "--text", "a", "--model", engine, *given)
    said = cli_kit.one_sentence(result)
    assert "was built for --max-batch-size 2, --dtype float32, asked is --max-batch-size 3, --dtype bfloat16;" in said


def test_what_early_stopping_may_be_is_said_of_the_option():
    result = cli_kit.call("translate", "a", "--num-beams", 2, "--early-stopping", "maybe")
    assert "--early-stopping is 'maybe'; it must be true, false or never." in result.stderr
