"""Adapters on the command line: for all inputs, for each its own, by names in lines of JSON."""

from __future__ import annotations

import json
import shutil

import pytest

import vlm
from tests.kits.cli_kit import call
from tests.kits.models import prompted_kit, tiny
from tests.kits.models.lora_kit import random_adapter, random_ia3
from tests.kits.models.prompted_kit import saved
from vlm_app.cli.errors import PARTLY_FAILED, USER_ERROR

pytestmark = pytest.mark.usefixtures("cache_of_module")

SHORT = ("--device", "cpu", "--max-new-tokens", 6)
PROMPTS = ("w1 w2", "w3", "w4 w5 w6")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two adapters of a LLaMA, a LoRA and an IA3, by name."""
    layers = [f"model.layers.{i}.self_attn.{name}_proj" for i in range(2) for name in "qo"]
    root = tmp_path_factory.mktemp("adapters")
    return {"a": random_adapter(root / "a", *layers, seed=0), "b": random_ia3(root / "b", *layers, seed=1)}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    saved("llama", folder)
    return folder


@pytest.fixture(scope="module")
def texts(llama, adapters):
    """What each prompt comes to with each adapter, and without one."""
    pipe = vlm.load(llama, device="cpu", lora=adapters)
    found = {
        name: [out.text for out in pipe.generate([{"raw_prompt": p} for p in PROMPTS], max_new_tokens=6, lora=name)]
        for name in (None, *adapters)
    }
    assert all(len(set(column)) == 3 for column in zip(*found.values(), strict=True)), "adapters make no difference"
    return found


def loras(adapters) -> list[str]:
    return [word for name, folder in adapters.items() for word in ("--lora", f"{name}={folder}")]


def test_a_lone_adapter_is_that_of_all_inputs(llama, adapters, texts):
    prompts = ("generate", *PROMPTS, "--raw-prompt", "--model", llama, *SHORT)
    result = call(*prompts, "--lora", f"b={adapters['b']}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == texts["b"]
    assert call(*prompts, "--lora", f"b={adapters['b']}", "--lora-task-uids", "-1").stdout.splitlines() == texts[None]
    result = call(*prompts, *loras(adapters))
    assert result.exit_code == USER_ERROR and not result.stdout
    assert (
        "there are 2 adapters; say which one with --lora-task-uids 0 (or one for each: 0 is a, 1 is b" in result.stderr
    )
    result = call(*prompts, *loras(adapters), "--lora-task-uids", "0", "1", "2")
    assert result.exit_code == USER_ERROR and not result.stdout
    assert "there is no adapter 2: a, b is what is loaded; load one with --lora NAME=FOLDER" in result.stderr


def test_a_merged_checkpoint_needs_no_adapter(llama, adapters, texts, tmp_path):
    out = tmp_path / "merged"
    result = call("convert", llama, "-o", out, "--merge-lora", adapters["b"])
    assert result.exit_code == 0 and result.stdout == f"{out}\n", result.stderr
    result = call("generate", *PROMPTS, "--raw-prompt", "--model", out, *SHORT)
    assert result.stdout.splitlines() == texts["b"]


def test_each_input_has_its_own(llama, adapters, texts, tmp_path):
    generate = ("generate", "--raw-prompt", "--model", llama, *SHORT, *loras(adapters))
    result = call(*generate, *PROMPTS, "--lora-task-uids", "1,-1,0")
    assert result.stdout.splitlines() == [texts["b"][0], texts[None][1], texts["a"][2]]
    lines = [{"prompt": PROMPTS[0], "lora": "b"}, {"text": PROMPTS[1], "lora": "c"}, {"prompt": PROMPTS[2], "lora": 0}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = call(*generate, "--file", file)
    assert result.exit_code == PARTLY_FAILED
    assert "line 2: there is no adapter 'c': a, b is what is loaded" in result.stderr
    assert result.stdout.splitlines() == [texts["b"][0], "", texts["a"][2]]
    file.write_text(f"{json.dumps(lines[0])}\n{json.dumps({'prompt': PROMPTS[1]})}\n")
    result = call(*generate, "--file", file)
    assert result.exit_code == PARTLY_FAILED and result.stdout.splitlines() == [texts["b"][0], ""]
    assert 'line 2: it names no "lora", and --lora-task-uids says none for all' in result.stderr


def test_folders_alone_are_named_and_numbered(llama, adapters, texts, tmp_path):
    generate = ("generate", *PROMPTS, "--raw-prompt", "--model", llama, *SHORT)
    both = ("--lora-dir", adapters["a"], adapters["b"])
    want = [texts["a"][0], texts["b"][1], texts[None][2]]
    for uids in (("0", "1", "-1"), ("0,1", "-1"), ("0", "--lora-task-uids", "1,-1")):
        result = call(*generate, *both, "--lora-task-uids", *uids)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines() == want
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": PROMPTS[1], "lora": "b"}))
    result = call("generate", "--raw-prompt", "--model", llama, "--file", file, *SHORT, *both)
    assert result.stdout.splitlines() == [texts["b"][1]]
    again = tmp_path / "again" / "b"
    shutil.copytree(adapters["a"], again)
    result = call(*generate, "--lora-dir", adapters["b"], again, "--lora-task-uids", 1, 0, -1)
    assert result.stdout.splitlines() == [texts["a"][0], texts["b"][1], texts[None][2]], result.stderr
    file.write_text(json.dumps({"prompt": PROMPTS[1], "lora": "again/b"}))
    result = call(
        "generate", "--raw-prompt", "--model", llama, "--file", file, *SHORT, "--lora-dir", again, adapters["b"]
    )
    assert result.stdout.splitlines() == [texts["a"][1]], result.stderr
    result = call("generate", *SHORT, "--lora-dir", adapters["b"], "--model", llama, "--raw-prompt", "--", *PROMPTS)
    assert result.stdout.splitlines() == texts["b"]


def test_texts_of_an_encoder_have_adapters(tmp_path, monkeypatch):
    monkeypatch.setitem(prompted_kit.MODELS, "t5", lambda: tiny.t5(seed=0, eos_token_id=2, tied=False))
    saved("t5", tmp_path / "t5")
    modules = [f"{part}.block.0.layer.0.SelfAttention.q" for part in ("encoder", "decoder")]
    adapter = random_adapter(tmp_path / "adapter", *modules, seed=3)
    pipe = vlm.load(tmp_path / "t5", device="cpu", lora={"own": adapter})
    base, own = (pipe.generate({"text": "w1 w2"}, max_new_tokens=6, lora=n).text for n in (-1, "own"))
    assert base != own
    model = ("--model", tmp_path / "t5", *SHORT, "--lora", f"own={adapter}")
    result = call("run", "--text", "w1 w2", "--text", "w1 w2", "--lora-task-uids", "-1,0", *model)
    assert result.stdout.splitlines() == [base, own]
    assert call("summarize", "w1 w2", "--prefix", "", *model).stdout.splitlines() == [own]


def test_encodings_have_adapters(tmp_path, monkeypatch):
    monkeypatch.setitem(prompted_kit.MODELS, "t5", lambda: tiny.t5(seed=0, eos_token_id=2, tied=False))
    saved("t5", tmp_path / "t5")
    adapter = random_ia3(tmp_path / "adapter", "encoder.block.1.layer.0.SelfAttention.v", seed=3)
    pipe = vlm.load(tmp_path / "t5", device="cpu", lora={"own": adapter})
    base, own = (pipe.encode("w1 w2", lora=n).last_hidden_state.mean(0).tolist() for n in (-1, "own"))
    assert base != pytest.approx(own)
    encode = ("encode", "w1 w2", "w1 w2", "--model", tmp_path / "t5", "--device", "cpu", "--lora-dir", adapter)
    for uids, want in (((), (own, own)), (("--lora-task-uids", 0, -1), (own, base))):
        result = call(*encode, *uids)
        assert result.exit_code == 0, result.stderr
        for line, mean in zip(result.stdout.splitlines(), want, strict=True):
            assert json.loads(line)["mean"] == pytest.approx(mean, abs=1e-5)
    result = call("encode", "--model", "mini-nougat", "--image", "page.png", "--lora", f"own={adapter}")
    assert result.exit_code == USER_ERROR and "adapters leave encoders of images as they are" in result.stderr


@pytest.mark.parametrize("verb", [("run", "--text", "w1"), ("translate", "w1"), ("encode", "w1"), ("eval", "texts")])
@pytest.mark.parametrize("flags", [("--lora", "a=x", "--lora", "b=y"), ("--lora-dir", "x", "y")])
def test_of_several_adapters_one_is_said(verb, flags, tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("a\tb\n")
    result = call(*verb, *[data] * (verb[0] == "eval"), "--model", "mini-t5", *flags)
    assert result.exit_code == USER_ERROR
    wanted = "all texts are scored with one adapter" if verb[0] == "eval" else "say which one with --lora-task-uids 0"
    assert wanted in result.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--lora", "a"), "lora is 'a', it must be NAME=FOLDER"),
        (("--lora", "a=nowhere"), "nowhere is no folder of a PEFT adapter"),
        (("--lora-task-uids", "0,x"), "--lora-task-uids is '0,x'; give numbers such as 0 or 0,1,0"),
        (("--lora-task-uids", "0"), "there is no adapter 0: none is loaded; load one with --lora NAME=FOLDER"),
        (("--lora-task-uids", "-1,-1"), "--lora-task-uids names 2 tasks for 1 request; give one"),
        (("--lora-task-uids", ""), "--lora-task-uids is ''; give numbers such as 0 or 0,1,0"),
        (("--lora", "a=b", "--lora-dir", "c"), "adapters are given by --lora and by --lora-dir; give all of them by"),
        (("--lora-dir", "x/a", "./x/a/"), "lora names a twice, give each adapter a name of its own"),
        (("--lora", "a=b", "--check-accuracy"), "--check-accuracy compares with the base model; leave --lora out"),
    ],
)
def test_what_does_not_go_together(options, sentence, llama):
    result = call("run", "--raw-prompt", "w1", "--model", llama, *SHORT, *options)
    assert result.exit_code == USER_ERROR and sentence in result.stderr, result.stderr
