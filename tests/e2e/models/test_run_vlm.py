"""`vlm run` on models that are asked in words, about images and without: one prompt, chat, profile, accuracy."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import vlm
from tests.kits.cli_kit import call, one_sentence
from tests.kits.models import tiny
from tests.kits.models.prompted_kit import ASKED_WITH_IMAGES, DECODERS, ids, pictures, saved, text, tuned_continued
from vlm.packaged import ASSETS
from vlm.registry import catalogs

pytestmark = pytest.mark.usefixtures("cache_of_module")

SHORT = ("--device", "cpu", "--max-new-tokens", "10")


@pytest.fixture(scope="module", params=ASKED_WITH_IMAGES)
def asked(request, tmp_path_factory):
    """A model that takes images in its prompts: its name, its folder, its pipeline."""
    if request.param not in catalogs.families():
        pytest.skip(f"no installed catalog brings the family {request.param} yet")
    folder = tmp_path_factory.mktemp(request.param)
    saved(request.param, folder)
    return request.param, folder, vlm.load(folder, device="cpu", cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    if "llava" not in catalogs.families():
        pytest.skip("no installed catalog brings the family llava yet")
    folder = tmp_path_factory.mktemp("llava")
    saved("llava", folder)
    return folder, vlm.load(folder, device="cpu", cache_dir=folder / "cache")


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return saved(request.param, folder), folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("images"), 3)


# --- one prompt ---
def test_all_images_belong_to_one_prompt(asked, images):
    _, folder, pipe = asked
    for given in (images[:1], images[:2], []):
        flags = [part for path in given for part in ("--image", path)]
        result = call("run", *flags, "--prompt", "w1 w2 w3 ?", "--model", folder, *SHORT)
        want = pipe.generate(images=list(map(str, given)), prompt="w1 w2 w3 ?", max_new_tokens=10)
        assert (result.exit_code, result.stdout) == (0, want.text + "\n"), result.stderr
    row = json.loads(call("run", *flags, "--prompt", "w1", "--model", folder, *SHORT, "--json").stdout)
    assert row["prompt"] == "w1" and "image" not in row and row["tokens"] == len(row["token_ids"])
    flags = ("--image", images[0], "--image", images[1], "--json")
    row = json.loads(call("run", *flags, "--prompt", "w1", "--model", folder, *SHORT).stdout)
    assert row["images"] == list(map(str, images[:2])) and row["prompt"] == "w1"


def test_prompts_as_they_are_from_stdin_and_none(asked, images):
    name, folder, pipe = asked
    flags = ("--image", images[0], "--model", folder, *SHORT)
    raw = "<image> w4 w5" if name == "llava" else "w4 w5"
    want = pipe.generate(images=[str(images[0])], raw_prompt=raw, max_new_tokens=10).text + "\n"
    assert call("run", *flags, "--raw-prompt", raw).stdout == want
    assert call("run", *flags, "--raw-prompt", "-", stdin=raw).stdout == want
    want = pipe.generate(images=[str(images[0])], prompt="w4 w5 ?", max_new_tokens=10).text + "\n"
    assert call("run", *flags, "--prompt", "-", stdin="w4 w5 ?\n").stdout == want
    assert call("run", *flags).stdout == pipe.generate(images=[str(images[0])], max_new_tokens=10).text + "\n"
    streamed = call("run", *flags, "--prompt", "w4 w5 ?", "--raw")
    assert streamed.stdout == want and streamed.exit_code == 0
    data = images[0].read_bytes()
    assert call("run", "--image", "-", "--prompt", "w4 w5 ?", *flags[2:], stdin=data).stdout == want


def test_a_prompt_for_a_decoder(decoder):
    model, folder = decoder
    result = call("run", "--prompt", "w1 w2", "--model", folder, *SHORT)
    assert result.stdout == text(tiny.hf_continued(model, ids("USER: w1 w2 ASSISTANT:"), 10)) + "\n"
    raw = text(tiny.hf_continued(model, ids("w1 w2"), 10))
    assert call("run", "--raw-prompt", "w1 w2", "--model", folder, *SHORT).stdout == raw + "\n"
    both = call("run", "--text", "w1 w2", "--text", "w3", "--model", folder, *SHORT).stdout.splitlines()
    assert both[0] == result.stdout.strip() and len(both) == 2


# --- chat ---
def test_a_conversation_about_images(llava, images):
    folder, pipe = llava
    first, second, third = map(str, images)
    result = call("run", "--chat", "--image", first, "--model", folder, *SHORT,
                  stdin=f"w1 w2\nw3\n/image {second}\n/image {third}\nw4\n/reset\nw5\n")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    turns, answers = [], result.stdout.splitlines()
    assert len(answers) == 4
    for said, shown in (("w1 w2", [first]), ("w3", []), ("w4", [second, third])):
        parts = [*({"type": "image", "image": path} for path in shown), {"type": "text", "text": said}]
        turns.append({"role": "user", "content": parts})
        out = pipe.generate(messages=turns, max_new_tokens=10)
        assert answers.pop(0) == out.text
        turns.append({"role": "assistant", "content": out.text})
    assert answers == [pipe.generate(prompt="w5", max_new_tokens=10).text]


def test_images_that_cannot_be_read_in_a_conversation(llava, images, tmp_path):
    folder, pipe = llava
    result = call("run", "--chat", "--model", folder, *SHORT, stdin=f"/image {tmp_path / 'none.png'}\n/image\nw1\n")
    assert result.exit_code == 2 and result.stderr.count("vlm: ") == 2 and "none.png" in result.stderr
    assert result.stdout == pipe.generate(prompt="w1", max_new_tokens=10).text + "\n"
    result = call("run", "--chat", "--image", "none.png", "--model", folder, *SHORT, stdin="w1\n")
    assert "none.png" in one_sentence(result) and not result.stdout
    profiled = call("run", "--chat", "--run-profiling", "--model", folder, *SHORT, stdin="w1\nw2\n")
    assert re.search(r"^requests +2$", profiled.stderr, re.M)


# --- profile and accuracy ---
def test_where_the_time_went(asked, images):
    _, folder, _ = asked
    for flags in ((), ("--raw",)):
        result = call(
            "run", "--image", images[0], "--prompt", "w1", "--model", folder, *SHORT, "--run-profiling", *flags
        )
        assert result.exit_code == 0, result.stderr
        table = dict(re.findall(r"^(\w[\w ]*?) {2,}(.+)$", result.stderr, re.M))
        assert table.keys() == {
            "preprocess",
            "vision",
            "prefill",
            "decode",
            "total",
            "requests",
            "tokens",
            "first token",
        }
        seconds = {name: float(table[name].split()[0]) for name in table if table[name].split()[1:2] == ["s"]}
        assert 0 < seconds["first token"] <= seconds["total"] and seconds["vision"] > 0
        assert table["requests"] == "1" and "tokens/s decoding" in table["tokens"]


def test_accuracy_beside_hugging_face(asked, images):
    _, folder, _ = asked
    for given in (images[:2], []):
        flags = [part for path in given for part in ("--image", path)]
        _agrees(call("run", *flags, "--prompt", "w1 w2 ?", "--model", folder, *SHORT, "--check-accuracy"), 1)


def test_accuracy_of_decoders_texts_and_pages(decoder):
    _, folder = decoder
    _agrees(call("run", "--text", "w1 w2 ?", "--text", "w5", "--model", folder, *SHORT, "--check-accuracy"), 2)


@pytest.mark.parametrize(("flags", "count"), [((), 0), (("--top-logprobs", "2"), 2)])
def test_a_check_prints_no_more_likeliest_tokens_than_were_asked_for(flags, count, decoder):
    """It has log-probabilities of more tokens compared."""
    _, folder = decoder
    asked = ("run", "--text", "w1 w2 ?", "--model", folder, *SHORT, "--json", *flags)
    plain, checked = call(*asked), call(*asked, "--check-accuracy")
    _agrees(checked, 1)
    row = json.loads(checked.stdout)
    assert row == json.loads(plain.stdout) | {"seed": row["seed"]}
    assert [len(top) for top in row.get("top_logprobs", ())] == [2] * (row["tokens"] if count else 0)


def test_accuracy_of_packaged_models():
    page = str(ASSETS.parents[1] / "examples" / "page.png")
    _agrees(call("run", "--image", page, "--image", page, *SHORT, "--check-accuracy", "--dtype", "float32"), 2)
    _agrees(call("run", "--text", "translate English to German: one", *SHORT, "--check-accuracy"), 1)


def test_accuracy_beside_another_type(decoder):
    """In float32 the reference shows what bfloat16 costs."""
    _, folder = decoder
    given = ("run", "--text", "w1 w2 ?", "--model", folder, *SHORT, "--check-accuracy", "--reference-dtype", "float32")
    _agrees(call(*given), 1)
    result = call(*given, "--dtype", "bfloat16")
    assert float(re.search(r"log-probability error (\S+)", result.stderr)[1]) > 1e-3
    alone = call("run", "--text", "a", "--model", folder, "--reference-dtype", "float32")
    assert "which --check-accuracy runs; add --check-accuracy" in one_sentence(alone)


def _agrees(result, requests):
    assert result.exit_code == 0, result.stderr
    found = re.search(r"agreement with Hugging Face (\S+)%, maximum log-probability error (\S+) \(\d+ tokens of (\d+)",
                      result.stderr)  # fmt: skip
    assert (found[1], int(found[3])) == ("100.00", requests) and float(found[2]) < 1e-3, result.stderr


@pytest.mark.parametrize(("flags", "says"), [
    (("--temperature", "1"), "leave --temperature out"),
    (("--num-beams", "3", "--num-return-sequences", "2"), "leave --num-return-sequences out"),
    (("--bad-words", "a"), "leave --bad-words out"),
])  # fmt: skip
def test_accuracy_is_of_one_likeliest_output(flags, says):
    assert says in one_sentence(call("run", "--text", "a", "--check-accuracy", "--model", "nothing", *flags))


def test_accuracy_needs_the_models_folder(tmp_path):
    saved("gpt2", tmp_path / "hf")
    assert call("build", tmp_path / "hf", "-o", tmp_path / "engine", "--dtype", "float32").exit_code == 0
    result = call("run", "--prompt", "w1", "--model", tmp_path / "engine", "--check-accuracy", *SHORT)
    assert "engine is an engine, and Hugging Face runs the folder" in one_sentence(result)
    assert "by --against FOLDER, or compare with vlm verify ENGINE --against FOLDER" in one_sentence(result)


def test_accuracy_of_an_engine_beside_a_folder(tmp_path):
    saved("gpt2", tmp_path / "hf")
    saved("llama", tmp_path / "other")
    assert call("build", tmp_path / "hf", "-o", tmp_path / "engine", "--dtype", "float32").exit_code == 0
    asked = ("run", "--text", "w1 w2", "--model", tmp_path / "engine", *SHORT)
    _agrees(call(*asked, "--check-accuracy", "--against", tmp_path / "hf"), 1)
    _agrees(call(*asked, "--check-accuracy", "--against", tmp_path / "hf", "--num-beams", "3"), 1)
    result = call(*asked, "--check-accuracy", "--against", tmp_path / "other")
    assert "other is a llama model, the engine was made of a gpt2 model" in one_sentence(result)
    alone = call(*asked, "--against", tmp_path / "hf")
    assert "--against is about Hugging Face, which --check-accuracy runs; add" in one_sentence(alone)


# --- tuned prompts ---
def test_rows_before_prompts_and_images(asked, images, tmp_path):
    _, folder, pipe = asked
    table = np.random.default_rng(1).normal(size=(2, 3, 32)).astype(np.float32)
    np.save(tmp_path / "t.npy", table)
    asked_with = ("--prompt-table", tmp_path / "t.npy", "--tasks", "1", "--model", folder, *SHORT)
    for given in ([], images[:1]):
        flags = [part for path in given for part in ("--image", path)]
        result = call("run", *flags, "--prompt", "w1", *asked_with)
        request = pipe.request({"images": list(map(str, given)), "prompt": "w1", "prompt_table": table[1]})
        ours = request.encoder_input_ids or request.decoder_prompt_token_ids
        assert ours[:3] == (60, 61, 62) and max(ours) == 62 + len(given) * pipe.processor.vision.max_rows
        plain = pipe.request({"images": list(map(str, given)), "prompt": "w1"})
        plain = plain.encoder_input_ids or plain.decoder_prompt_token_ids
        assert [i if i < 60 else i - 3 for i in ours[3:]] == list(plain)
        want = pipe.generate(
            images=list(map(str, given)), prompt="w1", prompt_table=torch.from_numpy(table[1]), max_new_tokens=10
        )
        assert result.stdout == want.text + "\n"


def test_rows_before_prompts_of_a_decoder_and_its_accuracy(decoder, tmp_path):
    model, folder = decoder
    table = np.random.default_rng(1).normal(size=(2, 3, 32)).astype(np.float32)
    np.save(tmp_path / "t.npy", table)
    asked_with = ("--prompt-table", tmp_path / "t.npy", "--model", folder, *SHORT)
    result = call("run", "--text", "w1", "--text", "w2 w3", "--tasks", "1,0", *asked_with, "--check-accuracy")
    _agrees(result, 2)
    want = [tuned_continued(model, torch.from_numpy(table[n]), ids(f"USER: {p} ASSISTANT:"), 10)
            for n, p in ((1, "w1"), (0, "w2 w3"))]  # fmt: skip
    assert result.stdout.splitlines() == [text(tokens) for tokens in want]
    result = call("run", "--text", "w1", "--text", "w2", "--text", "w3", "--tasks", "1,0", *asked_with)
    assert "--tasks names 2 tasks for 3 requests" in one_sentence(result)


def test_rows_before_the_text_of_an_encoder(tmp_path):
    """T5 reads them first; a text that is cut leaves room for them."""
    pipe = vlm.load("mini-t5", device="cpu")
    width = pipe.config.embedding_size
    np.save(tmp_path / "t.npy", np.random.default_rng(1).normal(size=(4, width)))
    tuned = ("--prompt-table", tmp_path / "t.npy", *SHORT)
    _agrees(call("run", "--text", "translate English to German: one", *tuned, "--check-accuracy"), 1)
    table, vocab = torch.zeros(4, width), pipe.config.vocab_size
    plain = pipe.request({"text": "one two"}).encoder_input_ids
    found = pipe.request({"text": "one two", "prompt_table": table}).encoder_input_ids
    assert found == (*range(vocab, vocab + 4), *plain)
    cut = pipe.request({"text": "one " * 2000, "prompt_table": table, "truncate": True}).encoder_input_ids
    assert len(cut) == pipe.llm.limits.max_encoder_input_len and cut[:4] == found[:4] and cut[-1] == plain[-1]


# --- mistakes, and which model ---
@pytest.mark.parametrize(("flags", "says"), [
    ((), "one kind at a time"),
    (("--image", "a.png", "--text", "b"), "one kind at a time; what is asked about an image is its --prompt."),
    (("--image", "https://a.example/b.png", "--device", "cpu"),
     "https://a.example/b.png is an address, which is not fetched; give the path"),
    (("--prompt", "a", "--raw-prompt", "b"), "--prompt, --raw-prompt were given together"),
    (("--prompt", "a", "--chat"), "--prompt, --chat were given together"),
    (("--text", "a", "--chat"), "--chat, --text were given together"),
    (("--image", "-", "--prompt", "-"), "stdin (-) is asked for twice"),
    (("--image", "-", "--chat"), "stdin (-) is asked for twice"),
    (("--chat", "--check-accuracy", "--model", "x"), "--check-accuracy is for single requests"),
    (("--prompt", "a"), "no model that is asked in words is packaged; name one"),
    (("--chat",), "no model that is asked in words is packaged; name one"),
    (("--prompt", "a", "--model", "mini-nougat", "--device", "cpu"), "--prompt alone is for models that are asked in"
     " words; nougat is for vlm run --image"),
    (("--image", "page.png", "--raw-prompt", "a", "--model", "mini-nougat", "--device", "cpu"),
     "--raw-prompt is for models that are asked in words"),
    (("--chat", "--model", "mini-t5", "--device", "cpu"), "--chat is for models that are asked in words; t5 is for"
     " vlm run --text"),
    (("--tasks", "1", "--text", "a"), "add --prompt-table FILE.npy"),
])  # fmt: skip
def test_what_is_wrong_is_said(flags, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vlm_app.cli.inference.run_inputs.packaged_chat_model", lambda: None)
    Image.new("RGB", (30, 20)).save("page.png")
    result = call("run", *flags, stdin="x")
    assert says in one_sentence(result) and not result.stdout


def test_which_model_answers(llava, images, monkeypatch):
    folder, pipe = llava
    monkeypatch.setattr("vlm_app.cli.inference.run_inputs.packaged_chat_model", lambda: str(folder))
    result = call("run", "--image", images[0], "--prompt", "w1", *SHORT)
    assert result.stdout == pipe.generate(images=[str(images[0])], prompt="w1", max_new_tokens=10).text + "\n"
    assert call("run", "--prompt", "w1", *SHORT).stdout == pipe.generate(prompt="w1", max_new_tokens=10).text + "\n"
    nougat = vlm.load("mini-nougat", device="cpu")
    page = ASSETS.parents[1] / "examples" / "page.png"
    for flags, prompt in (((), None), (("--prompt", "# Harbour", "--model", "mini-nougat"), "# Harbour")):
        result = call("run", "--image", page, "--image", page, *flags, *SHORT)
        want = nougat.generate(images=[str(page)], prompt=prompt, max_new_tokens=10).text
        assert result.stdout == f"{want}\n{want}\n"


def test_a_prompt_that_does_not_fit_its_images(llava, images):
    folder, _ = llava
    result = call("run", "--image", images[0], "--prompt", "<image> and <image> ?", "--model", folder, *SHORT)
    assert "2 <image> placeholders and 1 image was given" in one_sentence(result)
    result = call("run", "--image", images[0], "--image", "none.png", "--prompt", "w1", "--model", folder, *SHORT)
    assert "none.png" in one_sentence(result) and not result.stdout
