"""What becomes of texts before a model reads them: cuts, suffixes; token ids instead; the base model among tasks."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

import vlm
from tests.kits.cli_kit import call
from tests.kits.models import prompted_kit, tiny
from tests.kits.models.prompted_kit import VOCABULARY, ids, saved, text, tuned_continued

pytestmark = pytest.mark.usefixtures("cache_of_module")

SHORT = ("--device", "cpu", "--max-new-tokens", 6)
LONG = " ".join(f"w{i % 50}" for i in range(200))


def _saved(name, make, folder, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(prompted_kit.MODELS, name, make)
        model = saved(name, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return model, folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A decoder of 128 positions whose tokenizer cuts the left side, as its file says; it also says that it does so
    unasked."""
    folder = tmp_path_factory.mktemp("llama")
    made = _saved("llama", prompted_kit.MODELS["llama"], folder, truncation_side="left")
    said = json.loads((folder / "tokenizer.json").read_text())
    said["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    said["padding"] = None
    (folder / "tokenizer.json").write_text(json.dumps(said))
    return made


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return _saved("t5", lambda: tiny.t5(seed=0, eos_token_id=2, tied=False), tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def pipes(llama, t5):
    return {"llama": vlm.load(llama[1], device="cpu"), "t5": vlm.load(t5[1], device="cpu", max_encoder_input_len=20)}


@pytest.fixture
def loaded(pipes, monkeypatch):
    """The verbs get the models that are loaded already."""
    found = {"llama": pipes["llama"], "t5": pipes["t5"]}
    monkeypatch.setitem(vlm.__dict__, "load", lambda model, **options: found[model])
    return pipes


# --- cut texts ---
@pytest.mark.parametrize("side", ["left", "right", None])
def test_prompts_are_cut_as_hugging_face_cuts_them(llama, pipes, side, monkeypatch):
    pipe, tokenizer = pipes["llama"], pipes["llama"].tokenizer
    theirs = PreTrainedTokenizerFast.from_pretrained(llama[1], **({} if side is None else {"truncation_side": side}))
    monkeypatch.setattr(tokenizer, "truncation_side", side or tokenizer.truncation_side)
    want = theirs(LONG, truncation=True, max_length=128 - 6).input_ids
    asked = {"raw_prompt": LONG, "truncate": True}
    assert list(pipe.request(asked, max_new_tokens=6).decoder_prompt_token_ids) == want
    assert (side or "left") == theirs.truncation_side == tokenizer.truncation_side
    whole = pipe.request({"raw_prompt": "w1 w2 w3 w4 w5 w6", "truncate": True}).decoder_prompt_token_ids
    assert list(whole) == ids("w1 w2 w3 w4 w5 w6"), "nothing is cut unasked"


def test_what_stands_around_a_prompt_is_not_cut(pipes):
    """The chat template, the suffix, the rows of a prompt table."""
    pipe = pipes["llama"]
    asked = {"prompt": LONG, "suffix": " w51 w52", "truncate": True, "prompt_table": torch.zeros(3, 32)}
    found = list(pipe.request(asked, max_new_tokens=6).decoder_prompt_token_ids)
    assert len(found) == 128 - 6 and found[:3] == [60, 61, 62]
    words = [VOCABULARY[i] for i in found[3:]]
    assert words[:2] == ["<s>", "USER:"] and words[-3:] == ["w51", "w52", "ASSISTANT:"]
    assert words[2:-3] == LONG.split()[-len(words[2:-3]) :]


@pytest.mark.parametrize("verb", ["run", "generate", "summarize", "translate", "eval"])
def test_truncate_in_all_verbs(loaded, tmp_path, verb):
    key = "text" if verb in ("run", "summarize", "translate", "eval") else "prompt"
    want = loaded["llama"].generate({key: LONG, "truncate": True, "suffix": " w9"}, max_new_tokens=6).text
    (tmp_path / "pairs.tsv").write_text(f"{LONG}\tw1")
    given = {"run": ["--text", LONG], "eval": [tmp_path / "pairs.tsv", "--task", "summarize", "--metric", "exact"]}
    asked = [verb, *given.get(verb, [LONG]), "--model", "llama", *SHORT, "--suffix", " w9"]
    out = ["--json", tmp_path / "out.json"] if verb == "eval" else []
    result = call(*asked, *out, "--truncate")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())["outputs"][0]["vlm"] if out else result.stdout.strip()
    assert found == want
    result = call(*asked)
    assert (
        result.exit_code == (2 if verb in ("run", "eval") else 1)
        and "more than the 128 that the engine" in result.stderr
    )


def test_suffixes_of_an_encoders_texts(loaded):
    """Before the end, with room kept for it; the same tokens as if it had been written."""
    request = lambda **given: list(loaded["t5"].request(given).encoder_input_ids)  # noqa: E731
    assert request(text="w1 w2", suffix=" w3") == request(text="w1 w2 w3")
    cut = request(text=LONG, suffix=" w51 w52", truncate=True)
    assert len(cut) == 20 and [VOCABULARY[i] for i in cut[-3:]] == ["w16", "w51", "w52"] != cut[:3]
    result = call("summarize", "w1 w2", "--prefix", "", "--suffix", " w3", "--model", "t5", *SHORT)
    assert result.stdout == call("summarize", "w1 w2 w3", "--prefix", "", "--model", "t5", *SHORT).stdout
    assert result.stdout != call("summarize", "w1 w2", "--prefix", "", "--model", "t5", *SHORT).stdout


# --- token ids ---
ROWS = [[1, 9, 8, 7], [1, 30], [1, 44, 12, 13, 14, 15]]


def _files(folder, rows, pad):
    """The same rows in every form."""
    width = max(map(len, rows))
    ragged = np.empty(len(rows), dtype=object)
    ragged[:] = rows
    arrays = {
        "padded": np.array([row + [pad] * (width - len(row)) for row in rows]),
        "minus": np.array([[-1] * (width - len(row)) + row for row in rows], dtype=np.int32),
        "lists": ragged,
    }
    ragged_arrays = np.empty(len(rows), dtype=object)
    ragged_arrays[:] = [np.array(row) for row in rows]
    for name, array in {**arrays, "arrays": ragged_arrays}.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=True)
    (folder / "rows.csv").write_text("\n".join(", ".join(map(str, row)) for row in rows))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "named.jsonl").write_text("\n".join(json.dumps({"input_ids": row, "id": 3}) for row in rows))
    return sorted(file for file in folder.iterdir() if file.suffix in (".npy", ".csv", ".jsonl"))


def test_token_ids_of_files(loaded, llama, t5, tmp_path):
    for name, model, verbs in (
        ("llama", llama[0], ("generate", "run", "summarize")), ("t5", t5[0], ("translate", "summarize", "run")),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        want = [text(tiny.hf_text(model, row, 6) if name == "t5" else tiny.hf_continued(model, row, 6)) for row in ROWS]
        files = _files(folder, ROWS, loaded[name].config.pad_token_id)
        assert len(files) == 7
        for number, file in enumerate(files):
            result = call(verbs[number % len(verbs)], "--input-ids", file, "--model", name, *SHORT)
            assert (result.exit_code, result.stdout.splitlines()) == (0, want), (file, result.stderr)
        for verb in verbs:
            rows = [json.loads(line) for line in call(verb, "--input-ids", files[-1], "--model", name, *SHORT, "--json")
                    .stdout.splitlines()]  # fmt: skip
            assert [row["input_ids"] for row in rows] == ROWS and [row["text"] for row in rows] == want
            assert all(row["token_ids"] for row in rows)


def test_rows_of_ids_that_fail(loaded, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("1,5,6\n\n1,60\n7,-2\n1,5,6\n")
    for verb, code in (("generate", 1), ("run", 2)):
        result = call(verb, "--input-ids", file, "--model", "llama", *SHORT)
        assert result.exit_code == code
        assert f"{file} line 3: token id 60 is outside the vocabulary of 60" in result.stderr
        assert f"{file} line 4: token id -2 is outside the vocabulary" in result.stderr
        lines = [line for line in result.stdout.split("\n") if line]
        assert len(lines) == 2 and lines[0] == lines[1] != ""


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit(7)",))


def test_files_that_hold_no_ids(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = np.empty(1, dtype=object)
    evil[0] = Evil()
    np.save("evil.npy", evil, allow_pickle=True)
    (tmp_path / "pickled.npy").write_bytes(pickle.dumps([1]))
    np.save("floats.npy", np.zeros((2, 2)))
    np.save("deep.npy", np.zeros((2, 2, 2), dtype=int))
    for name, content in {
        "words.csv": "1,2\n1,two\n", "empty.csv": "\n\n", "deep.jsonl": "[[1]]", "half.jsonl": "[1.5]",
        "open.jsonl": "[1", "none.jsonl": '{"ids": [1]}', "true.jsonl": "[true]", "a.txt": "1",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(content)
    (tmp_path / "latin.csv").write_bytes(b"\xff\xfe1")
    for name, says in {
        "evil.npy": "is no .npy file of token ids", "pickled.npy": "is no .npy file",
        "floats.npy": "is float64 of shape [2, 2]", "deep.npy": "is int64 of shape [2, 2, 2]",
        "words.csv": "row 2 holds 'two'; give whole numbers",
        "empty.csv": "holds no token ids", "deep.jsonl": "row 1 holds [1]", "half.jsonl": "row 1 holds 1.5",
        "open.jsonl": "row 1 is no list", "none.jsonl": "row 1 is no list", "true.jsonl": "row 1 holds True",
        "a.txt": "give a .csv, .npy or .jsonl file", "gone.csv": "does not exist", "latin.csv": "is no text of numbers",
    }.items():  # fmt: skip
        for verb in ("generate", "translate", "summarize", "run"):
            result = call(verb, "--input-ids", name, "--model", "nothing")
            assert result.exit_code == 2 and f"--input-ids {name} " in result.stderr and says in result.stderr
            assert len(result.stderr.splitlines()) == 1 and result.stderr.endswith(".\n")


@pytest.mark.parametrize(("asked", "says"), [
    (("generate", "w1", "--input-ids", "a.csv"), "leave prompts out"),
    (("summarize", "--prefix", "p", "--truncate", "--input-ids", "a.csv"), "leave --prefix, --truncate out"),
    (("run", "--text", "a", "--input-ids", "a.csv"), "leave --text out"),
    (("run", "--chat", "--input-ids", "a.csv"), "leave --chat out"),
    (("run", "--chat", "--truncate"), "--truncate is for single requests; leave --chat out"),
    (("generate", "--chat", "--suffix", "a", "--model", "x"), "leave --suffix out"),
    (("translate", "--input-ids", "a.csv", "-o", "a.csv"), "is the file that is read"),
])  # fmt: skip
def test_what_does_not_go_together(asked, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("1,2")
    result = call(*asked)
    assert result.exit_code == 2 and says in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


# --- tasks ---
def test_the_base_model_among_tasks(loaded, llama, tmp_path):
    rows = np.random.default_rng(2).normal(size=(2, 4, 32)).astype(np.float32)
    np.save(tmp_path / "t.npy", rows)
    plain = tiny.hf_continued(llama[0], ids("w1 w2"), 6)
    tuned = [tuned_continued(llama[0], torch.from_numpy(each), ids("w1 w2"), 6) for each in rows]
    asked = ("--raw-prompt", "--model", "llama", "--prompt-table", tmp_path / "t.npy", *SHORT)
    result = call("generate", "w1 w2", "w1 w2", "w1 w2", "--tasks", "1,-1,0", *asked)
    assert result.stdout.splitlines() == [text(tuned[1]), text(plain), text(tuned[0])], result.stderr
    assert call("generate", "w1 w2", "--tasks", "-1", *asked).stdout.strip() == text(plain)
    (tmp_path / "ids.csv").write_text("\n".join([",".join(map(str, ids("w1 w2")))] * 2))
    asked = ("--input-ids", tmp_path / "ids.csv", "--tasks", "-1,1", "--prompt-table", tmp_path / "t.npy")
    for verb in ("run", "summarize"):
        result = call(verb, *asked, "--model", "llama", *SHORT)
        assert result.stdout.splitlines() == [text(plain), text(tuned[1])], result.stderr
