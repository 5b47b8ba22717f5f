"""`vlm generate` as people call it, with tiny random decoders: prompts, chat, tuned prompts, mistakes."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vlm
from tests.checkout import ROOT
from tests.kits.cli_kit import call, one_sentence
from tests.kits.models import tiny
from tests.kits.models.prompted_kit import DECODERS, VOCABULARY, ids, pictures, saved, text, tuned_continued
from vlm_app.cli.options import texts as text_options

pytestmark = pytest.mark.usefixtures("cache_of_module")

EXAMPLES = ROOT / "examples"
SHORT = ("--device", "cpu", "--max-new-tokens", "12")
PROMPTS = ["w1 w2 w3", "w40", "w7 w7 w9 w30 w2"]


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return saved(request.param, folder), folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return saved("llama", folder), folder


# --- prompts ---
def test_prompts_in_order_as_hugging_face_continues_them(decoder):
    model, folder = decoder
    raw = call("generate", *PROMPTS, "--raw-prompt", "--model", folder, *SHORT)
    assert raw.exit_code == 0, raw.stderr
    assert raw.stdout.splitlines() == [text(tiny.hf_continued(model, ids(p), 12)) for p in PROMPTS]
    put = call("generate", *PROMPTS, "--model", folder, *SHORT)
    want = [text(tiny.hf_continued(model, ids(f"USER: {p} ASSISTANT:"), 12)) for p in PROMPTS]
    assert put.stdout.splitlines() == want != raw.stdout.splitlines()
    assert "3 prompts" in put.stderr and "tokens/s" in put.stderr


def test_files_stdin_and_lines_that_fail(llama, tmp_path):
    _, folder = llama
    asked = ("--model", folder, *SHORT)
    want = call("generate", *PROMPTS, *asked).stdout.splitlines()
    long = "w1 " * 130
    (tmp_path / "prompts.txt").write_bytes(f"{PROMPTS[0]}\r\n\n{PROMPTS[1]}\n{long}\n".encode() + b"\xff\n")
    out = tmp_path / "out.txt"
    result = call("generate", "--file", tmp_path / "prompts.txt", "-o", out, *asked)
    assert result.exit_code == 1 and not result.stdout
    assert out.read_text().split("\n") == [want[0], "", want[1], "", "", ""]
    assert "line 4: 133 prompt tokens" in result.stderr and "line 5: it is not UTF-8" in result.stderr
    assert call("generate", "-", *asked, stdin="\n".join(PROMPTS)).stdout.splitlines() == want
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"text": p}) for p in PROMPTS))
    result = call("generate", "--file", tmp_path / "prompts.jsonl", "--json", *asked)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["text"] for row in rows] == want and [row["source"] for row in rows] == PROMPTS
    assert all(row["tokens"] == len(row["token_ids"]) == len(row["logprobs"]) for row in rows)


@pytest.mark.parametrize("options", [
    {"num_beams": 3}, {"num_beams": 3, "length_penalty": -2.0}, {"num_beams": 3, "num_return_sequences": 2},
    {"temperature": 0.9, "seed": 5}, {"temperature": 1.5, "seed": 5, "top_k": 4},
    {"temperature": 2.0, "seed": 1, "top_p": 0.7}, {"temperature": 2.0, "seed": 1, "min_p": 0.2},
    {"repetition_penalty": 1.9}, {"presence_penalty": 8.0}, {"frequency_penalty": 8.0}, {"no_repeat_ngram_size": 1},
    {"min_new_tokens": 12}, {"temperature": 1.0, "seed": 9, "num_return_sequences": 3},
], ids=str)  # fmt: skip
def test_every_option_reaches_the_model(llama, options):
    _, folder = llama
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    result = call("generate", PROMPTS[0], "--model", folder, *SHORT, *flags)
    assert result.exit_code == 0, result.stderr
    out = vlm.load(folder, device="cpu").generate(prompt=PROMPTS[0], max_new_tokens=12, **options)
    assert result.stdout.splitlines() == [out.text, *(other.text for other in out.alternatives)]
    assert len(out.alternatives) == options.get("num_return_sequences", 1) - 1


def test_a_stop_string_ends_the_text(llama):
    _, folder = llama
    words = call("generate", PROMPTS[0], "--model", folder, *SHORT).stdout.split()
    result = call("generate", PROMPTS[0], "--model", folder, *SHORT, "--stop", words[3], "--stop", "never", "--json")
    fields = json.loads(result.stdout)
    assert fields["text"].split() == words[: words.index(words[3])] and fields["finish_reason"] == "stop"


def test_a_lone_prompt_is_streamed_on_a_terminal(llama, monkeypatch):
    _, folder = llama
    whole = call("generate", PROMPTS[0], "--model", folder, *SHORT).stdout
    monkeypatch.setattr(text_options, "_on_terminal", lambda out: out is None)
    assert call("generate", PROMPTS[0], "--model", folder, *SHORT).stdout == whole
    two = call("generate", PROMPTS[0], "--num-beams", 2, "--num-return-sequences", 2, "--model", folder, *SHORT)
    assert len(two.stdout.splitlines()) == 2


# --- lines of JSON ---
def jsonl(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def said(*turns):
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(turns)]


def test_conversations_and_prompts_of_a_file(llama, tmp_path):
    model, folder = llama
    file = jsonl(
        tmp_path / "asked.jsonl",
        {"messages": said("w1 w2", "w9", "w3")}, {"prompt": "w1 w2"}, {"text": "w3", "id": 7}, "",
        {"messages": said([{"type": "text", "text": "w4"}, {"type": "text", "text": " w5"}])},
    )  # fmt: skip
    result = call("generate", "--file", file, "--json", "--model", folder, *SHORT)
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    put = ["USER: w1 w2 ASSISTANT: w9 USER: w3 ASSISTANT:", "USER: w1 w2 ASSISTANT:", "USER: w3 ASSISTANT:",
           "USER: w4 w5 ASSISTANT:"]  # fmt: skip
    answered = [row for row in rows if "token_ids" in row]
    assert [row["token_ids"] for row in answered] == [tiny.hf_continued(model, ids(p), 12) for p in put]
    assert [row["source"] for row in rows] == ["w3", "w1 w2", "w3", "", "w4 w5"]
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5] and "5 prompts" in result.stderr


def test_images_of_prompts_and_conversations_of_a_file(tmp_path):
    saved("llava", tmp_path / "llava")
    one, two = map(str, pictures(tmp_path, 2))
    image = {"type": "image", "path": Path(one).name}  # beside the file
    asked = [
        {"prompt": "w1 <image> w2", "images": [one]},
        {"messages": said([{"type": "text", "text": "w1"}, image, {"type": "text", "text": "w2"}], "w5", "w6")},
        {"messages": said([{"type": "image"}, {"type": "text", "text": "w2"}]), "images": [two]},
        {"prompt": "w2 w3", "images": [two, one]},
        {"images": [two]},
    ]
    result = call(
        "generate", "--file", jsonl(tmp_path / "a.jsonl", *asked), "--json", "--model", tmp_path / "llava", *SHORT
    )
    assert result.exit_code == 0, result.stderr
    found = [json.loads(line)["token_ids"] for line in result.stdout.splitlines()]
    parts = asked[1]["messages"][0]["content"]
    inputs = [
        *asked[:1],
        {"messages": said([parts[0], {"type": "image", "image": one}, parts[2]], "w5", "w6")},
        *asked[2:],
    ]
    want = vlm.load(tmp_path / "llava", device="cpu").generate(inputs, max_new_tokens=12)
    assert found == [out.token_ids for out in want] and len({tuple(tokens) for tokens in found}) == len(asked)


def test_an_empty_argument_is_a_prompt_as_in_run(llama, tmp_path):
    """A model whose tokenizer begins no text of its own accord has nothing to go on with; an empty line is skipped."""
    tiny.save_with_words(tiny.gpt2(), tmp_path / "gpt2")
    gpt2 = ("--model", tmp_path / "gpt2", *SHORT)
    generated, ran = call("generate", "", *gpt2), call("run", "--text", "", *gpt2)
    assert "text 1: there is no prompt" in one_sentence(generated, 1) and "there is no prompt" in one_sentence(ran)
    assert call("generate", "-", *gpt2, stdin="\n").exit_code == 0
    asked = ("--model", llama[1], *SHORT)
    assert call("generate", "", *asked).stdout == call("run", "--text", "", *asked).stdout != "\n"
    for verb in ("translate", "summarize"):
        result = call(verb, "", "--device", "cpu", *(("--src-lang", "en", "--tgt-lang", "de") * (verb == "translate")))
        assert "text 1: the text is empty; give at least one word" in one_sentence(result, 1)


def test_lines_of_json_that_fail(llama, tmp_path):
    _, folder = llama
    rows = {
        "[1]": 'it is no JSON object with "prompt", "text" or "messages"',
        '{"source": "a"}': 'it is no JSON object with "prompt"', "nul": "it is no JSON object",
        "[" * 99999: "no JSON object",
        '{"prompt": "w1", "messages": []}': "it has prompt, messages; give one of them",
        '{"prompt": 3}': "its prompt is no string", '{"text": null}': "its text is no string",
        '{"prompt": "\\ud800"}': "is not Unicode text", '{"messages": []}': "messages is empty",
        '{"messages": "w1"}': "its messages are no list",
        json.dumps({"messages": [{"role": "user"}]}): "message 1 needs a role",
        '{"messages": [7]}': "message 1 needs a role",
        json.dumps({"messages": said("w1", "w2")}): "the last message is the assistant's",
        json.dumps({"messages": said(7)}): "the content of message 1 is neither a text nor a list",
        json.dumps({"messages": said([{"type": "video"}])}): "a part of type 'video'",
        json.dumps({"messages": said([{"type": "image", "path": 7}])}): "its images are no list of paths",
        json.dumps({"messages": said([{"type": "image", "path": "a.png"}])}): "llama takes text, not images",
        '{"prompt": "w1", "images": 7}': "its images are no list",
        '{"prompt": "w1", "images": ["a.png"], "image": "b.png"}': "it has images, image; give one of them",
        '{"image": "a.png", "question": "w1"}': "llama takes text, not images",
        '{"prompt": "w1", "images": ["a.png"]}': "llama takes text, not images",
    }  # fmt: skip
    file = jsonl(tmp_path / "a.jsonl", {"prompt": "w1"}, *rows, {"prompt": "w1"})
    result = call("generate", "--file", file, "--model", folder, *SHORT)
    first, *others, last = result.stdout.split("\n")[:-1]
    assert result.exit_code == 1 and first == last != "" and others == [""] * len(rows)
    named = [line for line in result.stderr.splitlines() if line.startswith("vlm: ")]
    for number, (line, says) in enumerate(zip(named, rows.values(), strict=True), 2):
        assert line.startswith(f"vlm: {file} line {number}: ") and says in line and line.endswith("."), line
    file = jsonl(tmp_path / "b.jsonl", {"messages": said("w1")}, {"prompt": "w1"})
    result = call("generate", "--file", file, "--raw-prompt", "--model", folder, *SHORT)
    assert result.exit_code == 1 and "line 1: it is a conversation, which needs the template" in result.stderr
    assert result.stdout == "\n" + call("generate", "w1", "--raw-prompt", "--model", folder, *SHORT).stdout


def test_lines_of_data_sets_name_an_image_and_a_question(tmp_path):
    """An image beside the file, the question as what the model is asked."""
    scene, question = EXAMPLES / "scene1.png", "How many objects are there?"
    shutil.copy(scene, tmp_path / "scene.png")
    lines = [
        {"prompt": question, "images": [str(scene)]}, {"prompt": question, "image": "scene.png"},
        {"question": question, "images": "scene.png", "answer": "0"},
    ]  # fmt: skip
    result = call("generate", "--file", jsonl(tmp_path / "a.jsonl", *lines), "--model", "mini-llava", *SHORT)
    assert result.exit_code == 0 and len(set(result.stdout.splitlines())) == 1, result.stderr
    assert result.stdout.split()[0] == "5"


def test_an_empty_stdin_is_no_prompt(llama):
    result = call("run", "--prompt", "-", "--model", llama[1], *SHORT, stdin="")
    assert result.exit_code == 2 and "stdin is empty" in result.stderr


# --- chat ---
def test_a_conversation_over_a_pipe(decoder):
    """Each prompt holds all that was said; an empty line is no turn."""
    model, folder = decoder
    result = call("generate", "--chat", "--model", folder, *SHORT, stdin="w1 w2\n\nw3\n/exit\nw4\n")
    assert result.exit_code == 0, result.stderr
    first = text(tiny.hf_continued(model, ids("USER: w1 w2 ASSISTANT:"), 12))
    second = text(tiny.hf_continued(model, ids(f"USER: w1 w2 ASSISTANT: {first} USER: w3 ASSISTANT:"), 12))
    assert result.stdout == f"{first}\n{second}\n"


def test_commands_and_failed_turns_of_a_conversation(llama):
    _, folder = llama
    stdin = b"w1 w2\n/reset\nw1 w2\n" + b"w5 " * 130 + b"\nw3\n/image a.png\n/help me\n\xff\n"
    result = call("generate", "--chat", "--json", "--model", folder, *SHORT, stdin=stdin)
    first, again, after = (json.loads(line) for line in result.stdout.splitlines())
    assert first["token_ids"] == again["token_ids"] and first["prompt"] == "w1 w2" and after["prompt"] == "w3"
    want = call("generate", "--chat", "--model", folder, *SHORT, stdin="w1 w2\nw3\n").stdout.splitlines()
    assert [first["text"], after["text"]] == want, "a turn that failed leaves nothing behind"
    assert result.exit_code == 2
    assert "prompt tokens" in result.stderr and "llama takes text, not images" in result.stderr
    assert "/help is no command: /image FILE" in result.stderr and "line 8: it is not UTF-8" in result.stderr


# --- tuned prompts ---
@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A file of three tasks of four rows, and one of a single table."""
    rows = np.random.default_rng(2).normal(size=(3, 4, 32)).astype(np.float32)
    folder = tmp_path_factory.mktemp("tables")
    np.save(folder / "three.npy", rows)
    np.save(folder / "one.npy", rows[1].astype(np.float64))
    return rows, folder


def test_rows_of_a_task_go_before_the_text(decoder, tables):
    model, folder = decoder
    rows, files = tables
    asked = ("generate", *PROMPTS, "--raw-prompt", "--model", folder, *SHORT, "--prompt-table")
    for file, options, tasks in (
        ("three.npy", ("--tasks", "2,0,1"), (2, 0, 1)),
        ("three.npy", ("--tasks", "2"), (2, 2, 2)),
        ("one.npy", (), (1, 1, 1)),
    ):
        result = call(*asked, files / file, *options)
        assert result.exit_code == 0, result.stderr
        want = [
            tuned_continued(model, torch.from_numpy(rows[n]), ids(p), 12) for n, p in zip(tasks, PROMPTS, strict=True)
        ]
        assert result.stdout.splitlines() == [text(tokens) for tokens in want]


def test_tasks_of_lines_and_of_a_conversation(llama, tables, tmp_path):
    model, folder = llama
    rows, files = tables
    tuned = ("--prompt-table", files / "three.npy", "--model", folder, *SHORT)
    result = call("generate", "-", "--raw-prompt", "--tasks", "1,0,2", *tuned, stdin="w1\n\nw2\n")
    want = [tuned_continued(model, torch.from_numpy(rows[n]), ids(p), 12) for n, p in ((1, "w1"), (2, "w2"))]
    assert result.stdout.split("\n") == [text(want[0]), "", text(want[1]), ""]
    file = jsonl(tmp_path / "asked.jsonl", {"messages": said("w1")}, {"prompt": "w1"})
    result = call("generate", "--file", file, "--tasks", "1,2", *tuned)
    both = [tuned_continued(model, torch.from_numpy(rows[n]), ids("USER: w1 ASSISTANT:"), 12) for n in (1, 2)]
    assert result.stdout.splitlines() == [text(tokens) for tokens in both]
    result = call("generate", "--chat", "--tasks", "1", *tuned, stdin="w1\n")
    want = tuned_continued(model, torch.from_numpy(rows[1]), ids("USER: w1 ASSISTANT:"), 12)
    assert result.stdout == text(want) + "\n"


def test_lines_name_their_tasks(llama, tables, tmp_path):
    model, folder = llama
    rows, files = tables
    tuned = lambda n, prompt: text(tuned_continued(model, torch.from_numpy(rows[n]), ids(prompt), 12))  # noqa: E731
    base = text(tiny.hf_continued(model, ids("w1"), 12))
    lines = [{"prompt": "w1", "task": 2}, {"prompt": "w1", "task": -1}, {"prompt": "w2", "task": "0"},
             {"prompt": "w1", "task": 3}, {"prompt": "w1"}]  # fmt: skip
    file = jsonl(tmp_path / "asked.jsonl", *lines)
    asked = ("generate", "--raw-prompt", "--file", file, "--model", folder, *SHORT)
    result = call(*asked, "--prompt-table", files / "three.npy")
    assert (result.exit_code, result.stdout.split("\n")) == (1, [tuned(2, "w1"), base, tuned(0, "w2"), "", "", ""])
    assert "line 4: its task is 3; " in result.stderr and "holds 0 to 2, and -1 is the base model." in result.stderr
    assert 'line 5: it names no "task", and --tasks says none for all.' in result.stderr
    result = call(*asked, "--prompt-table", files / "three.npy", "--tasks", "1")
    assert result.stdout.split("\n") == [tuned(2, "w1"), base, tuned(0, "w2"), "", tuned(1, "w1"), ""]
    result = call(*asked)  # a word of somebody's own
    assert result.exit_code == 0 and result.stdout.splitlines()[0] == base
    file = jsonl(tmp_path / "none.jsonl", {"prompt": "w1"}, {"prompt": "w1", "task": 0})
    asked = ("--file", file, "--prompt-table", files / "three.npy", "--model", "nothing")
    assert "holds 3 tasks; say which one with --tasks 0" in one_sentence(call("generate", *asked))


def test_wrong_tables(llama, tables, tmp_path, monkeypatch):
    _, folder = llama
    monkeypatch.chdir(tmp_path)
    three = tables[1] / "three.npy"
    np.save("whole.npy", np.zeros((2, 3), dtype=np.int64))
    np.save("flat.npy", np.zeros(3, dtype=np.float32))
    np.save("wide.npy", np.zeros((2, 33), dtype=np.float32))
    np.save("objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "pickled.npy").write_bytes(pickle.dumps([1.0]))
    np.savez("archive.npy.npz", rows=np.zeros((2, 32)))
    (tmp_path / "short.npy").write_bytes(three.read_bytes()[:-9])
    for options, says in (
        (("none.npy",), "--prompt-table none.npy does not exist; give a .npy file"),
        ((".",), "is a folder without tasks.json; give a .npy file, or a folder that vlm convert wrote"),
        (("objects.npy",), "is no .npy file of numbers"),
        (("pickled.npy",), "is no .npy file of numbers"),
        (("archive.npy.npz",), "is no .npy file of numbers"),
        (("short.npy",), "is no .npy file of numbers"),
        (("whole.npy",), "is int64 of shape [2, 3]; give floats [tasks, rows, hidden] or [rows, hidden]"),
        (("flat.npy",), "is float32 of shape [3]"),
        ((three,), "holds 3 tasks; say which one with --tasks 0"),
        ((three, "--tasks", "3"), "--tasks names 3; "),
        ((three, "--tasks", "0,-2"), "--tasks names -2; "),
        ((three, "--tasks", "0,x"), "--tasks names x; "),
        ((three, "--tasks", ""), "--tasks is ''; give numbers or names such as 0 or 0,1,0"),
        ((three, "--tasks", "0,"), "--tasks is '0,'; give numbers or names"),
    ):  # fmt: skip
        result = call("generate", "w1", "--model", "nothing", "--prompt-table", *options)
        assert says in one_sentence(result) and not result.stdout
    result = call("generate", "--chat", "--model", "nothing", "--prompt-table", three)
    assert "holds 3 tasks; say which one with --tasks 0" in one_sentence(result)
    result = call("generate", "w1", "--model", folder, *SHORT, "--prompt-table", three, "--tasks", "0,1")
    assert "--tasks names 2 tasks for 1 request;" in one_sentence(result)
    assert "--tasks says whose rows" in one_sentence(call("generate", "w1", "--model", folder, "--tasks", "0"))
    result = call("generate", "w1", "--model", folder, *SHORT, "--prompt-table", "wide.npy")
    assert "are rows of 33 values, this model takes rows of 32; give those that were tuned" in one_sentence(result)


# --- mistakes ---
@pytest.mark.parametrize(("asked", "says"), [
    ((), "give texts or files"),
    (("w1", "--file", "prompts.txt"), "give texts or files"),
    (("--file", "none.txt"), "--file none.txt does not exist"),
    (("w1",), "--model is missing; name a decoder"),
    (("w1", "--model", "nothing"), "model 'nothing' does not exist"),
    (("w1", "--model", "mini-t5", "--device", "cpu"), "for models that are asked in words; t5 is for vlm run --text"),
    (("w1", "--model", "mini-nougat", "--device", "cpu"), "asked in words; nougat is for vlm run --image"),
    (("w1", "--model", "x", "--temperature", "-1"), "--temperature is -1.0; it must be 0"),
    (("w1", "--model", "x", "--num-beams", "1", "--num-return-sequences", "2"), "give at least as many --num-beams"),
    (("w1", "--model", "x", "-o", "none/x"), "--out none/x cannot be written"),
    (("w1", "--chat", "--model", "x"), "leave the prompts out"),
    (("--chat", "-o", "a", "--raw-prompt", "--model", "x"), "leave --out, --raw-prompt out"),
    (("--chat", "--model", "mini-t5", "--device", "cpu"), "asked in words"),
    (("--chat", "--num-beams", "2", "--num-return-sequences", "2", "--model", "x"), "leave --num-return-sequences out"),
])  # fmt: skip
def test_what_is_wrong_is_said(asked, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vlm_app.cli.options.decoding.packaged_chat_model", lambda: None)
    (tmp_path / "prompts.txt").write_text("w1")
    result = call("generate", *asked)
    assert says in one_sentence(result) and not result.stdout


def test_a_model_without_a_template_does_not_converse(tmp_path):
    saved("llama", tmp_path, template=None)
    result = call("generate", "--chat", "--model", tmp_path, *SHORT, stdin="w1\n")
    assert "this model has no chat template, it does not converse" in one_sentence(result) and not result.stdout
    result = call("generate", "w1", "--model", tmp_path, *SHORT)
    assert result.exit_code == 0 and set(result.stdout.split()) <= set(VOCABULARY)
