"""translate, summarize, eval and run on texts, as people call them, with the packaged model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import T5ForConditionalGeneration

import vlm
from tests.checkout import ROOT
from tests.kits.cli_kit import call, one_sentence
from tests.kits.models import tiny
from vlm.build.locate import packaged_models
from vlm.processing.text.tokenization import Tokenizer

pytestmark = pytest.mark.usefixtures("cache_of_module")

EXAMPLES = ROOT / "examples"
EN_DE = ("--src-lang", "en", "--tgt-lang", "de", "--device", "cpu")
PAIRS = [line.split("\t") for line in (EXAMPLES / "translate.tsv").read_text("utf-8").splitlines()]
NOTICES = [json.loads(line) for line in (EXAMPLES / "notices.jsonl").read_text("utf-8").splitlines()]


def test_translate_arguments_and_beams():
    texts = [english for english, _ in PAIRS[:3]]
    for options in ((), ("--num-beams", "4")):
        result = call("translate", *texts, *EN_DE, *options)
        assert result.exit_code == 0 and result.stdout.splitlines() == [german for _, german in PAIRS[:3]]
    assert "3 texts" in result.stderr and "tokens/s" in result.stderr


def test_a_model_without_a_tokenizer_takes_ids(tmp_path):
    tiny.t5(seed=0).save_pretrained(tmp_path / "hf")
    out = tmp_path / "ckpt"
    result = call("convert", tmp_path / "hf", "-o", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n")
    assert f"vlm: warning: {out} has no tokenizer, so it reads and writes token ids (--input-ids)" in result.stderr
    assert "tokenizer" not in call("convert", "mini-t5", "-o", tmp_path / "whole").stderr
    run = ("run", "--model", out, "--device", "cpu", "--max-new-tokens", 4)
    result = call(*run, "--text", "a")
    assert result.exit_code == 2 and "no tokenizer; give token ids instead of text (--input-ids)" in result.stderr
    for languages in (), ("--src-lang", "en", "--tgt-lang", "de"):  # what lacks is the tokenizer, not these
        said = one_sentence(call("translate", "a", "--model", out, "--device", "cpu", *languages))
        assert "no tokenizer; give token ids" in said
    (tmp_path / "ids.csv").write_text("5,6,1\n")
    result = call(*run, "--input-ids", tmp_path / "ids.csv", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["token_ids"], result.stderr


def test_outputs_begin_where_they_are_told_to(tmp_path):
    pipe = vlm.load("mini-t5", device="cpu")
    prefix, english = "translate English to German: ", PAIRS[0][0]
    ids = pipe.tokenizer.encode(PAIRS[1][1])[:3]
    given = {"text": prefix + english, "decoder_prompt_token_ids": [0, *ids]}
    want, plain = pipe.generate(given).text, pipe.generate(text=prefix + english).text
    begins = ("--device", "cpu", "--decoder-prompt-token-ids", ",".join(map(str, (0, *ids))))
    (tmp_path / "ids.csv").write_text(",".join(map(str, pipe.tokenizer.encode_source(prefix + english))) + "\n")
    calls = (
        ("run", "--text", prefix + english),
        ("run", "--input-ids", tmp_path / "ids.csv"),
        ("translate", english, "--src-lang", "en", "--tgt-lang", "de"),
        ("translate", "--input-ids", tmp_path / "ids.csv"),
        ("summarize", english, "--prefix", prefix),
    )
    for words in calls:
        assert call(*words, *begins).stdout.strip() == want != plain, words
    page = EXAMPLES / "page.png"
    nougat = ("run", "--image", page, "--raw", "--max-new-tokens", 5, *begins[:3])
    assert call(*nougat, "0,20").stdout != call(*nougat, "0").stdout
    refused = {
        ("run", "--text", "a", "--prompt", "b", *begins): "--prompt, --decoder-prompt-token-ids were given together",
        (
            "run",
            "--image",
            page,
            "--prompt",
            "b",
            "--model",
            "mini-llava",
            *begins,
        ): "llava has none, and its prompt is",
        ("run", "--chat", *begins): "--decoder-prompt-token-ids is for single requests; leave --chat out",
        ("run", "--text", "a", *begins[:3], "a"): "the token ids are 'a'; give numbers with commas between them",
        ("run", "--text", "a", *begins[:3], "9999"): "token id 9999 is outside the vocabulary of 2048",
    }
    for words, says in refused.items():
        assert says in one_sentence(call(*words)), words


def test_a_line_without_end_costs_itself(tmp_path):
    """Reads no more of a line than a text may have."""
    (one, first), (two, second) = PAIRS[0], PAIRS[1]
    source = tmp_path / "lines.txt"
    source.write_bytes(b"\n".join((one.encode(), b"and " * 10**6, b"and " * 5 * 10**6, two.encode())))
    result = call("translate", "--file", source, *EN_DE)
    assert result.exit_code == 1 and result.stdout.splitlines() == [first, "", "", second]
    assert "line 2: the text has 4,000,0" in result.stderr and "shorten or split it" in result.stderr
    assert "line 3: it has more than 16,777,216 bytes" in result.stderr
    whole = call("translate", "-", *EN_DE, stdin=b"and " * 5 * 10**6)
    assert whole.exit_code == 1 and "line 1: it has more than 16,777,216 bytes" in whole.stderr


def test_a_file_line_by_line_with_what_is_wrong_named(tmp_path):
    """BOM, CRLF, an empty line, a line that is not UTF-8, one that is too long, no end of line at the end."""
    (one, first), (two, second) = PAIRS[0], PAIRS[1]
    data = b"\xef\xbb\xbf" + one.encode() + b"\r\n\r\n\xff\xfe\n" + b"and " * 900 + b"\n" + two.encode()
    source, out = tmp_path / "lines.txt", tmp_path / "out.txt"
    source.write_bytes(data)
    result = call("translate", "--file", source, "-o", out, *EN_DE)
    assert result.exit_code == 1 and not result.stdout
    assert out.read_text("utf-8").split("\n") == [first, "", "", "", second, ""]
    assert f"{source} line 3: it is not UTF-8 (byte 1 of it)" in result.stderr
    assert f"{source} line 4: the text has" in result.stderr and "--truncate" in result.stderr
    cut = call("translate", "--file", source, "-o", out, "--truncate", "--max-new-tokens", "5", *EN_DE)
    assert "line 4" not in cut.stderr and "line 3" in cut.stderr


def test_stdin_json_and_another_direction():
    english, german = PAIRS[-1]
    result = call("translate", "-", "--src-lang", "de", "--tgt-lang", "en", "--json", stdin=german + "\n")
    fields = json.loads(result.stdout)
    assert result.exit_code == 0 and fields["text"] == english and fields["source"] == german
    assert fields["finish_reason"] == "eos" and len(fields["logprobs"]) == len(fields["token_ids"])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A .npy file of two tasks, six rows each, and what Hugging Face's T5 makes of a text after them."""
    folder = packaged_models()["mini-t5"]
    model = T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    learned, tokenizer = model.get_input_embeddings().weight.detach(), Tokenizer.from_dir(folder)
    rows = torch.randn(2, 6, learned.shape[1], generator=torch.Generator().manual_seed(0)) * 3 * learned.std()
    file = tmp_path_factory.mktemp("tuned") / "rows.npy"
    np.save(file, rows.numpy())

    def after(task: int, text: str) -> str:
        embedded = torch.cat([rows[task], learned[tokenizer.encode_source(text)]])[None]
        return tokenizer.decode(model.generate(inputs_embeds=embedded, max_new_tokens=20, num_beams=1)[0].tolist())

    return file, after


def test_tuned_prompts_of_tasks(tuned, tmp_path):
    table, after = tuned
    short = ("--prompt-table", table, "--device", "cpu", "--max-new-tokens", 20, "--num-beams", 1)
    texts = ["twenty-one", "The old ship is small.", "at 3:00 p.m."]
    put = [f"translate English to German: {text}" for text in texts]
    for tasks in ((1, 0, 1), (1, 1, 1)):
        want = [after(task, text) for task, text in zip(tasks, put, strict=True)]
        for named in ([",".join(map(str, tasks))], tasks) if len(set(tasks)) > 1 else ([1],):
            result = call("translate", *texts, *EN_DE, "--tasks", *named, *short)
            assert (result.exit_code, result.stdout.splitlines()) == (0, want), result.stderr
    (tmp_path / "lines.txt").write_text("\n".join((texts[0], "", texts[1])))
    result = call("summarize", "--file", tmp_path / "lines.txt", "--lines", "--tasks", "0,0,1", *short)
    want = [after(0, f"summarize: {texts[0]}"), "", after(1, f"summarize: {texts[1]}")]
    assert (result.exit_code, result.stdout.split("\n")) == (0, [*want, ""]), result.stderr
    plain = call("translate", texts[2], *EN_DE).stdout.strip()
    assert len({after(0, put[2]), after(1, put[2]), plain}) == 3, "the rows make no difference"


def test_tuned_prompts_that_do_not_fit(tuned, tmp_path):
    table, _ = tuned
    np.save(tmp_path / "wide.npy", np.zeros((2, 33), dtype=np.float32))
    for verb, options, says in (
        ("translate", ("--prompt-table", table), "holds 2 tasks; say which one with --tasks 0"),
        ("summarize", ("--prompt-table", table, "--tasks", "2"), "--tasks names 2; "),
        ("summarize", ("--tasks", "1"), "--tasks says whose rows"),
        ("translate", ("--prompt-table", table, "--tasks", "0,1"), "--tasks names 2 tasks for 1 request;"),
    ):
        result = call(verb, "a text", *options, "--model", "nothing")
        assert result.exit_code == 2 and says in result.stderr and not result.stdout, result.stderr
    result = call("summarize", "a text", "--prompt-table", tmp_path / "wide.npy", "--device", "cpu")
    assert result.exit_code == 2 and "are rows of 33 values, this model takes rows of" in result.stderr


def test_summarize_files_and_lines(tmp_path):
    result = call("summarize", "--file", EXAMPLES / "notices.jsonl", "--device", "cpu")
    assert result.exit_code == 0 and result.stdout.splitlines() == [notice["summary"] for notice in NOTICES]
    whole = tmp_path / "notice.txt"
    whole.write_text(NOTICES[0]["text"])
    assert call("summarize", "--file", whole, "--device", "cpu").stdout.strip() == NOTICES[0]["summary"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "x"\n{"other": 1}\n' + json.dumps(NOTICES[1]))
    result = call("summarize", "--file", bad, "--device", "cpu")
    assert result.exit_code == 1 and result.stdout.splitlines() == ["", "", NOTICES[1]["summary"]]
    assert result.stderr.count("it is no JSON object") == 2


def test_a_text_for_run():
    (english, german), *_ = PAIRS
    result = call("run", "--model", "mini-t5", "--text", f"translate English to German: {english}", "--device", "cpu")
    assert result.exit_code == 0 and result.stdout.strip() == german


def test_eval_beside_hugging_face(tmp_path):
    out = tmp_path / "eval.json"
    result = call("eval", EXAMPLES / "translate.tsv", *EN_DE, "--compare-hf", "--bleu-threshold", "90", "--json", out,
                  "--bad-words", "nonsense")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "token agreement 100.00%, texts with the same tokens 100.00%" in result.stdout
    found = json.loads(out.read_text())
    assert found["vlm"]["scores"] == found["hf"]["scores"] and found["vlm"]["scores"]["exact"] > 90
    assert found["pairs"] == len(PAIRS)


def test_eval_of_summaries_by_beams_and_a_missed_threshold(tmp_path):
    notices = tmp_path / "notices.jsonl"
    wrong = {"text": NOTICES[3]["text"], "reference": "something else"}
    lines = [json.dumps(n) for n in (*NOTICES[:3], wrong)]
    notices.write_text("\n".join([*lines, "no json", '{"text": ""}']))
    asked = ("eval", notices, "--task", "summarize", "--device", "cpu", "--num-beams", "4", "--compare-hf")
    result = call(*asked, "--rouge1-threshold", "99")
    assert result.exit_code == 1 and "rouge1 75.00 is below 99" in result.stderr
    assert "100.00%" in result.stdout and result.stderr.count("left out:") == 2
    assert call(*asked, "--limit", "3", "--exact-threshold", "100").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("translate",), "give texts or files"),
        (("translate", "a", "--file", "b"), "give texts or files"),
        (("translate", "--file", "none.txt", *EN_DE), "none.txt does not exist"),
        (("translate", "--file", "examples", *EN_DE), "is a folder"),
        (("translate", "a", "-o", "none/out.txt", *EN_DE), "cannot be written"),
        (("translate", "a"), "give --src-lang en --tgt-lang de"),
        (("translate", "a", "--src-lang", "en", "--tgt-lang", "xx"), "'xx' is unknown to T5 models; give en, de"),
        (("translate", "a", "--prefix", "p: ", "--tgt-lang", "de"), "--prefix says the task already"),
        (("translate", "a", *EN_DE, "--model", "mini-nougat"), "mini-nougat takes images, not text"),
        (("translate", "a", *EN_DE, "--num-beams", "100"), "--num-beams is 100"),
        (
            ("translate", "a", *EN_DE, "--num-beams", "2", "--temperature", "1"),
            "--num-beams is 2 and --temperature 1, which",
        ),
        (("eval", "none.tsv"), "none.tsv cannot be read"),
        (("eval", "README.md"), "must be a .tsv"),
        (("eval", "examples/translate.tsv", "--task", "guess"), "--task is 'guess'"),
        (
            ("eval", "examples/translate.tsv", "--rouge1-threshold", "1"),
            "does not go with --task translate; give --task summarize, or add",
        ),
        (("eval", "examples/notices.jsonl", "--task", "summarize", "--src-lang", "en"), "go with --task translate"),
        (("eval", "examples/notices.jsonl"), "has a summary, and --task is translate; give --task summarize."),
        (
            (
                "eval",
                "examples/translate.tsv",
                "--compare-hf",
                "--temperature",
                "1",
                "--beam-search-diversity-rate",
                "1",
            ),
            "leave --temperature, --beam-search-diversity-rate out",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments, says, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    result = call(*arguments)
    failed = 1 if "100" in arguments else 2  # of one text, like a line's
    assert result.exit_code == failed and says in result.stderr, result.stderr


def test_eval_of_answers_takes_the_packaged_model_that_is_asked():
    result = call("eval", EXAMPLES / "scenes.jsonl", "--task", "answer", "--limit", 3, "--device", "cpu")
    assert result.exit_code == 0 and result.stdout.startswith("mini-llava, answer, 3 pairs")
    assert "100.00" in result.stdout


def test_eval_without_hugging_faces_weights(tmp_path):
    engine = tmp_path / "engine"
    assert call("build", "mini-t5", "-o", engine).exit_code == 0
    asked = ("eval", EXAMPLES / "translate.tsv", *EN_DE, "--model", engine, "--limit", "3", "--device", "cpu")
    result = call(*asked, "--compare-hf")
    assert result.exit_code == 2 and "engine is an engine, and Hugging Face runs the folder" in result.stderr
    result = call(*asked, "--compare-hf", "--against", "mini-t5", "--json", tmp_path / "eval.json")
    assert result.exit_code == 0 and "token agreement 100.00%" in result.stdout
    found = json.loads((tmp_path / "eval.json").read_text())
    assert found["model"] == str(engine) and Path(found["hf"]["folder"]).name == "mini-t5"
    result = call(*asked, "--compare-hf", "--against", "mini-llava")
    assert "mini-llava is a llava model, the engine was made of a t5 model" in result.stderr
