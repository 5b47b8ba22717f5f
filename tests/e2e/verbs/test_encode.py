"""`vlm encode` as people call it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import vlm
from tests.kits import cli_kit
from tests.kits.models import tiny
from vlm.api.pipeline import Pipeline
from vlm.errors import InputError

pytestmark = pytest.mark.usefixtures("cache_of_module")

WORDS = [f"w{i}" for i in range(50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny T5 whose words are numbered."""
    fast = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens(["<pad>", "</s>", "<unk>"])
    fast.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    folder = tmp_path_factory.mktemp("encode") / "model"
    model = tiny.t5(vocab_size=53, n_positions=16)
    model.save_pretrained(folder)
    fast.save(str(folder / "tokenizer.json"))
    return folder, model


def call(*arguments, stdin: str | None = None):
    return cli_kit.call("encode", *arguments, stdin=stdin)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_states_and_attentions_in_a_file(folder, tmp_path, suffix):
    path, model = folder
    out = tmp_path / f"states{suffix}"
    result = call("w3 w4", "w7", "--model", path, "-o", out, "--hidden-states", "--attentions")
    assert result.exit_code == 0 and result.stdout.strip() == str(out)
    arrays = dict(np.load(out)) if suffix == ".npz" else load_file(out)
    assert arrays["0.token_ids"].tolist() == [6, 7, 1] and arrays["1.token_ids"].tolist() == [10, 1]
    assert {f"0.hidden_states.{i}" for i in range(3)} | {"1.attentions.1"} <= set(arrays)
    with torch.no_grad():
        want = model.get_encoder()(torch.tensor([[6, 7, 1]])).last_hidden_state[0]
    np.testing.assert_allclose(arrays["0.last_hidden_state"], want.numpy(), atol=2e-4)


def test_means_as_lines_of_json(folder):
    path, model = folder
    result = call("-", "--model", path, stdin="w3 w4\nw9\n")
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["input"], line["rows"]) for line in lines] == [("w3 w4", 3), ("w9", 2)]
    with torch.no_grad():
        want = model.get_encoder()(torch.tensor([[12, 1]])).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(lines[1]["mean"], want.numpy(), atol=2e-4)


def test_a_text_that_cannot_be_encoded_costs_that_text(folder, tmp_path):
    path, _ = folder
    given = {"stdin": "w3 w4\n\n" + "w1 " * 40 + "\nw9\n"}
    result = call("-", "--model", path, **given)
    assert result.exit_code == 1
    assert [json.loads(line)["input"] for line in result.stdout.splitlines()] == ["w3 w4", "w9"]
    assert "vlm: stdin line 2: the text is empty" in result.stderr
    assert "vlm: stdin line 3: the text has" in result.stderr
    result = call("-", "--model", path, "-o", tmp_path / "states.npz", **given)
    assert result.exit_code == 1 and result.stderr.count("vlm: stdin line") == 2
    assert {name.partition(".")[0] for name in np.load(tmp_path / "states.npz")} == {"0", "3"}


def test_a_line_that_is_no_text_costs_that_line(folder, tmp_path):
    path, _ = folder
    lines = b"w3 w4\n\xff\xfe w1\nw2 \x00\nw9\n"
    result = call("-", "--model", path, stdin=lines)
    assert result.exit_code == 1
    assert [json.loads(line)["input"] for line in result.stdout.splitlines()] == ["w3 w4", "w9"]
    for number, words in ((2, "it is not UTF-8 (byte 1 of it)."), (3, "it has a NUL character")):
        assert f"vlm: stdin line {number}: {words}" in result.stderr
    result = call("-", "--model", path, "-o", tmp_path / "states.npz", stdin=lines)
    assert result.exit_code == 1 and result.stderr.count("vlm: stdin line") == 2
    assert {name.partition(".")[0] for name in np.load(tmp_path / "states.npz")} == {"0", "3"}
    result = call("-", "--model", path, stdin=b"\xff\n")
    assert result.exit_code == 2 and "vlm: stdin line 1: it is not UTF-8 (byte 1 of it)." in result.stderr
    result = call("-", "--model", path, "-o", tmp_path / "none.npz", stdin=b"\xff\n\xff\n")
    assert result.exit_code == 1 and result.stderr.count("it is not UTF-8") == 2


def test_what_is_wrong_is_said(folder, tmp_path):
    path, _ = folder
    for arguments, words in (
        (("--model", path), "give texts or images"),
        (("w1", "--image", "a.png", "--model", path), "give texts or images"),
        (("", "--model", path), "empty"),
        (("w1 " * 40, "--model", path), "41 tokens, the engine was built for 16"),
        (("w1", "--model", path, "--attentions"), "--out"),
        (("w1", "--model", path, "-o", "x.txt"), "must end in .npz or .safetensors"),
        (("w1", "--model", path, "-o", tmp_path / "none" / "x.npz"), "cannot be written"),
        (("w1", "--model", path, "--src-lang", "de_DE"), "takes no language codes"),
    ):
        result = call(*arguments)
        assert result.exit_code == 2 and words in result.stderr, (arguments, result.stderr)
    assert call("w1 " * 40, "--model", path, "--truncate").exit_code == 0


def test_tuned_prompts_go_before_texts(folder, tmp_path):
    path, _ = folder
    rows = np.random.default_rng(0).standard_normal((2, 3, 32), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    tuned = ("--model", path, "--prompt-table", tmp_path / "rows.npy")
    result = call("w1 w2", "w3", *tuned, "--tasks", "1", "-1", "-o", tmp_path / "states.npz")
    assert result.exit_code == 0, result.stderr
    found, model = np.load(tmp_path / "states.npz"), vlm.load(path, device="cpu", encoder_only=True)
    inputs = [{"text": "w1 w2", "prompt_table": rows[1]}, {"text": "w3"}]
    for number, (expected, count) in enumerate(zip(model.encode(inputs), (3 + 3, 2), strict=True)):
        assert found[f"{number}.token_ids"].tolist() == list(expected.token_ids) and len(expected.token_ids) == count
        np.testing.assert_allclose(found[f"{number}.last_hidden_state"], expected.last_hidden_state, atol=1e-6)
    model.close()
    np.save(tmp_path / "other.npy", rows[..., :5])
    for arguments, words in (
        (("w1", *tuned), "holds 2 tasks; say which one with --tasks 0"),
        (("w1", "--model", path, "--tasks", "0"), "add --prompt-table FILE.npy"),
        (("w1", *tuned, "--tasks", "5"), "--tasks names 5"),
        (("w1", *tuned[:3], tmp_path / "other.npy", "--tasks", "0"), "rows of 5 values, this model takes rows of 32"),
        (("--image", "a.png", *tuned, "--tasks", "0"), "tuned prompts go before texts, not images; leave"),
    ):
        assert words in cli_kit.one_sentence(call(*arguments))


def test_a_language_that_is_missing_is_called_as_the_option(folder, monkeypatch):
    def encode(*_, **options):
        raise InputError("give src_lang, which it lacks.", settings=("src_lang",))

    path, _ = folder
    monkeypatch.setattr(Pipeline, "encode", encode)
    result = call("w1", "--model", path)
    assert result.exit_code == 2 and result.stderr.endswith("vlm: give --src-lang, which it lacks.\n")
