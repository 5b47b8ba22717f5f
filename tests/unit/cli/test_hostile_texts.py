"""Tokenizers, chat templates and texts that were made to stop a program: one sentence, soon, in bounded memory."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from llm_engines.families.fairseq import tokenizer_rules
from tests.kits.cli_kit import call
from vlm.artifacts.hugging_face.chat_template import read_template
from vlm.build.locate import packaged_models
from vlm.errors import EngineError, InputError
from vlm.limits import MAX_ADDED_TOKENS, MAX_TOKENIZER_BYTES
from vlm.processing.chat.templates import render
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.tokenizer_rules import ReadRules, no_rules
from vlm_app.text import sources
from vlm_app.text.sources import from_file
from vlm_app.text.token_ids import read_token_ids

HUGE = 10**9
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}


def fields(**changed: object) -> dict:
    none = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", **none, "added_tokens": [], "model": WORDS, **changed}


def loaded(
    folder: Path, content: dict | bytes, name: str = "tokenizer.json", read_rules: ReadRules = no_rules
) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(fields()))
    (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Tokenizer.from_dir(folder, read_rules)


def added(token_id: int) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": f"<{token_id}>", "special": True, **flags}


def charsmap(size: int, rest: bytes = b"") -> dict:
    content = base64.b64encode(size.to_bytes(4, "little") + rest).decode()
    return {"type": "Precompiled", "precompiled_charsmap": content}


def replacing(content: str, pattern: str = "String", find: str = "a") -> dict:
    return {"type": "Replace", "pattern": {pattern: find}, "content": content}


def sequence(steps: list[dict]) -> dict:
    return {"type": "Sequence", "normalizers": steps}


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
MERGED = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]], "continuing_subword_prefix": "####"}
TEMPLATE = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}


@pytest.mark.parametrize(("content", "says"), [
    (b"", "Expecting value"), (b"[]", "a JSON list"), (b"[" * 100_000, "nested too deeply"), (b"\xff", "utf-8"),
    (fields(model={**WORDS, "vocab": {"a": 10**12}}), "expected u32"),
    (fields(model={**WORDS, "vocab": 3}), "expected"),
    (fields(added_tokens=[added(i) for i in range(MAX_ADDED_TOKENS + 1)]), "adds 131,073 tokens, the limit is 131,072"),
    (fields(added_tokens=7), "integer `7`"),
    (fields(normalizer=sequence([replacing("a" * 10)] * 8)), "more than 256 times as long"),
    (fields(normalizer=sequence([replacing("a", "Regex", "")] * 30)), "more than 256 times as long"),
    (fields(normalizer={"type": "Prepend", "prepend": "a" * 10**6}), "more than 256 times as long"),
    (fields(decoder={"type": "Sequence", "decoders": [replacing("aa")] * 99}), "decoder may make a text more than 256"),
    (fields(normalizer=charsmap(2**32 - 1)), "claims more bytes than it has"),
    (fields(normalizer=charsmap(4, bytes(4) + b"a" * 300)), "more than 256 times as long"),
    (fields(normalizer={"precompiled_charsmap": "AAAA"}), "recompiled"),
    (fields(normalizer=replacing("x", "Regex", "(")), "unmatched parenthesis"),
    (fields(pre_tokenizer={**SPLIT, "pattern": {"Regex": "(" * 10_000 + ")" * 10_000}}), "parse depth limit"),
    (fields(pre_tokenizer={"type": "FixedLength", "length": 0}), "must be non-zero"),
    (fields(post_processor={**TEMPLATE, "single": [{"SpecialToken": {"id": "y", "type_id": 0}}]}), "no entry found"),
    (fields(model=MERGED), "out of range"),
    (fields(model={"type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]",
                   "continuing_subword_prefix": "##", "max_input_chars_per_word": HUGE}), "the limit is 1,000"),
], ids=range(21))  # fmt: skip
def test_tokenizers_that_ask_for_too_much(content, says, tmp_path):
    with pytest.raises(EngineError, match=rf"tokenizer\.json is not a readable tokenizer: .*{says}") as error:
        loaded(tmp_path, content)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_the_first_of_two_keys_is_not_read(tmp_path):
    twice = json.dumps(fields()).replace("{", '{"normalizer": ' + json.dumps(charsmap(2**32 - 1)) + ", ", 1)
    assert loaded(tmp_path, twice.encode()).encode("a") == [0]


def test_what_a_tokenizer_claims_costs_nothing(tmp_path):
    """An id without its neighbours, and a padding of gigabytes."""
    padding = {"strategy": {"Fixed": 10**10}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "a"}  # fmt: skip
    vocabulary = {"a": HUGE, "[UNK]": 2}
    tokenizer = loaded(tmp_path, fields(padding=padding, model={**WORDS, "vocab": vocabulary}))
    assert tokenizer.encode("a") == [HUGE]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$"])
def test_regexes_that_explode(pattern, tmp_path):
    tokenizer = loaded(tmp_path, fields(pre_tokenizer={**SPLIT, "pattern": {"Regex": pattern}}))
    with pytest.raises(InputError, match=r"the model's tokenizer cannot read 'aaaaaaaaaaaaaaaaaaaa'…: .*retry-limit"):
        tokenizer.encode("a" * 60 + "b")


def test_tokenizers_have_a_size(tmp_path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_TOKENIZER_BYTES + 1)
    with pytest.raises(EngineError, match="has more than 134,217,728 bytes"):
        Tokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("values", [
    b"[]", b"3", {"bos_token": 3}, {"eos_token": {"content": [1]}}, {"languages": {"ids": 3}}, {"languages": {}},
    {"languages": {"ids": {"en": "x"}, "place": "suffix"}}, {"moses": 3}, {"dictionary_size": [], "unk_token_id": 0},
    b"[" * 100_000, b"\xff",
])  # fmt: skip
def test_settings_of_wrong_types(values, tmp_path):
    with pytest.raises(EngineError, match=r"tokenizer_config\.json is damaged: .* again\.$"):
        loaded(tmp_path, values, "tokenizer_config.json", tokenizer_rules)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "tokenizer_target.json"])
def test_pipes_in_the_place_of_tokenizers(name, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields()))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(EngineError, match=rf"{name} .*it is a pipe"):
        Tokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json", "processor_config.json"])
def test_templates_that_are_no_files(name, tmp_path):
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(EngineError, match=f"{name} cannot be read: it is a device"):
        read_template(tmp_path, with_images=True)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(b"\xff")
    with pytest.raises(EngineError, match=rf"{name} is damaged: .* again\.$"):
        read_template(tmp_path, with_images=True)


def test_templates_by_name_of_wrong_types(tmp_path):
    (tmp_path / "chat_template.json").write_text('{"chat_template": [3, {"name": "default", "template": "x"}]}')
    assert read_template(tmp_path, with_images=True) == "x"


@pytest.mark.parametrize("verb", ["translate", "summarize"])
@pytest.mark.parametrize("kind", ["device", "folder", "loop"])
def test_files_of_texts_that_are_none(verb, kind, tmp_path):
    file = tmp_path / "x.txt"
    file.mkdir() if kind == "folder" else file.symlink_to({"device": "/dev/zero", "loop": "x.txt"}[kind])
    result = call(verb, "--model", packaged_models()["mini-t5"], "--file", file)
    assert result.exit_code == 2 and "internal" not in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_line_without_end(tmp_path, monkeypatch):
    """After it nothing is read, as of a pipe that goes on for ever."""
    monkeypatch.setattr(sources, "MAX_BYTES", 8)
    monkeypatch.setattr(sources, "MAX_SKIPPED", 32)
    (tmp_path / "x").write_bytes(b"a\n" + b"b" * 30 + b"\nc\n" + b"d" * 99 + b"\ne\n")
    items = list(from_file(tmp_path / "x"))
    assert [(item.text, item.error) for item in items] == [
        ("a", None), ("", "it has more than 8 bytes"), ("c", None), ("", "it has more than 8 bytes"),
    ]  # fmt: skip


def npy(shape: str, dtype: str = "<i8") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def pickled(value: object) -> bytes:
    return npy("(1,)", "|O") + pickle.dumps(value)


class Zeros:
    def __reduce__(self):
        return np.ndarray, ((HUGE,), "b")


@pytest.mark.parametrize(("name", "content"), [
    ("x.npy", npy(f"({HUGE}, 0)")), ("x.npy", npy(f"({10**30},)")), ("x.npy", npy(f"({HUGE}, {HUGE})")),
    ("x.npy", npy("(-1,)")), ("x.npy", npy("(" * 900 + ")" * 900)), ("x.npy", npy("'x'")), ("x.npy", npy("(1,)", "zz")),
    ("x.npy", pickled([Zeros()])), ("x.npy", pickled(Zeros())), ("x.npy", pickled(print)), ("x.npy", b""),
    ("x.csv", b"1," + b"9" * 5000), ("x.csv", b"1" * 200_000), ("x.jsonl", b"[" * 100_000),
    ("x.jsonl", b"[" + b"9" * 5000 + b"]"), ("x.jsonl", b"\xff"),
], ids=range(16))  # fmt: skip
def test_token_ids_that_claim_too_much(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        read_token_ids(tmp_path / name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder"])
@pytest.mark.parametrize("option", ["--input-ids", "--prompt-table"])
def test_arrays_that_are_no_files(option, kind, tmp_path):
    file = tmp_path / "x.npy"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("x.npy" if kind == "loop" else "/dev/zero")
    words = ["a"] if option == "--prompt-table" else []
    result = call("generate", "--model", packaged_models()["mini-t5"], option, file, *words)
    assert result.exit_code == 2 and option in result.stderr and "internal" not in result.stderr


@pytest.mark.parametrize("shape", [f"({HUGE}, 0)", f"({10**30}, 4)", f"({HUGE}, {HUGE})", "(-1, 4)", "'x'"])
def test_prompt_tables_that_claim_too_much(shape, tmp_path):
    (tmp_path / "x.npy").write_bytes(npy(shape, "<f4"))
    result = call("generate", "--model", packaged_models()["mini-t5"], "--prompt-table", tmp_path / "x.npy", "a")
    assert result.exit_code == 2 and "--prompt-table" in result.stderr and "internal" not in result.stderr


@pytest.mark.parametrize("template", [
    "{% for i in range(10**9) %}x{% endfor %}", "{{ 'a' * 10**10 }}", "{{ [0] * 10**8 }}", "{{ 9 ** 9 ** 9 }}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "{{ '%1000000000d'|format(1) }}",
    "{{ '%1000000000d' % 1 }}", "{{ 'a'.ljust(10**9) }}", "{{ '{:>999999999}'.format(1) }}", "{{ 'x'|center(10**9) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ lipsum(n=9999) }}", "{{ [1]|batch(10**9, 0)|list }}",
    "{{ [1]|tojson(indent=10**9) }}", "{{ 'a\nb'|indent(10**9) }}", "{% include '/etc/passwd' %}",
    "{{ '{:>{}}'.format(1, '999999999') }}", "{{ '%*d' % (10**9, 1) }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(3) }}",
    "{{ strftime_now('%1000000000d') }}",
], ids=range(21))  # fmt: skip
def test_templates_that_ask_for_too_much(template):
    with pytest.raises(InputError, match="the model's chat template does not take this conversation: "):
        render(template, {"messages": []})


@pytest.mark.parametrize("template", ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{% if %}", "{{ 1|nothing }}"])
def test_templates_that_are_none(template):
    with pytest.raises(EngineError, match="the model's chat template is damaged: "):
        render(template, {})


def test_what_templates_of_models_use_is_left():
    template = (
        "{% for i in range(messages|length) %}{{ '%s' % messages[i] }}{{ 'ab' * 3 }}{{ 7 % 2 }}{{ 2 ** 3 }}{% endfor %}"
        "{{ messages|tojson(indent=2)|length }}{{ '{:>4}'.format(1) }}{{ messages[0].split('1')|last }}"
    )
    text = "1234567"
    assert render(template, {"messages": [text]}) == "1234567ababab18" + "15" + "   1" + "234567"
