"""Blanks before signs and endings (`clean_up_tokenization_spaces`): decoded texts and streams are Hugging Face's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, M2M100Tokenizer, MarianTokenizer, PreTrainedTokenizerFast

from llm_engines.families import m2m100, marian, t5
from tests.kits.publications import translation_kit as kit
from vlm.convert.tokenizer_files import make_tokenizer
from vlm.processing.text.clean_up import FOR_BPE, clean_up, settled
from vlm.processing.text.stream import TextStream
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.catalogs import families

SIGNS = [*"abdmnrstvel.,?!'", "▁"]
TEXTS = ["a . b , c ?", "do n't , we 've . they 're", "it 's ' mad ' . ' .", "a  ' s  n't ' ve", " . ?! , ' ", "as is."]
CLEANED = {"clean_up_tokenization_spaces": True}


def signs(kind: str) -> FastTokenizer:
    """Returns a tokenizer of single letters and signs."""
    tokens = ["<unk>", "</s>", *SIGNS]
    if kind == "unigram":
        model = models.Unigram([(token, -float(i)) for i, token in enumerate(tokens)], 0)
    else:
        model = models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>")
    fast = FastTokenizer(model)
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast.add_special_tokens(["<unk>", "</s>"])
    return fast


def check(theirs, ours: Tokenizer | None, cleans: bool) -> None:
    """Compares texts, and what streams of them make up, token by token and in bursts."""
    assert ours is not None
    draw, changed = random.Random(0), 0
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        want = theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids) == want
        changed += want != theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for most in (1, 3):
            stream, pieces, rest = TextStream(ours), [], ids
            while rest:
                size = draw.randint(1, most)
                pieces.append(stream.push(tuple(rest[:size])))
                rest = rest[size:]
            assert "".join([*pieces, stream.push((), last=True)]) == want
    assert bool(changed) == cleans


FAST = {
    "unigram": ("unigram", CLEANED, True),
    "unigram, not asked for": ("unigram", {}, False),
    "bpe": ("bpe", CLEANED, False),  # transformers leaves these, and says so
    "bpe, all the same": ("bpe", CLEANED | {FOR_BPE: True}, True),
}


@pytest.mark.parametrize(("kind", "settings", "cleans"), FAST.values(), ids=FAST)
def test_a_tokenizer_json(kind, settings, cleans, tmp_path):
    names = {"unk_token": "<unk>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=signs(kind), **names, **settings).save_pretrained(tmp_path)
    check(AutoTokenizer.from_pretrained(tmp_path), Tokenizer.from_dir(tmp_path), cleans)


def made(folder: Path, family: str, rules) -> Tokenizer:
    """Returns what is made of a folder's own files, with the settings that it has."""
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | CLEANED))
    for name, content in make_tokenizer(folder, families()[family]).items():
        (folder / name).write_text(content)
    tokenizer = Tokenizer.from_dir(folder, rules)
    assert tokenizer is not None
    return tokenizer


def test_bytes(tmp_path):
    """ByT5's tokenizer is written in Python, as are the next ones: these clean up, whatever their pieces are."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    theirs = ByT5Tokenizer(clean_up_tokenization_spaces=True)
    check(theirs, made(tmp_path, "t5", t5.tokenizer_rules), True)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("family", ["m2m100", "marian"])
def test_vocabularies(family, kind, tmp_path):
    pytest.importorskip("sentencepiece")
    if family == "m2m100":
        kit.m2m100_files(tmp_path, kind)
        file = tmp_path / "vocab.json"
        entries = [*json.loads(file.read_text()), ",", "."]
        file.write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
        ours, kind_of_theirs = made(tmp_path, family, m2m100.tokenizer_rules), M2M100Tokenizer
    else:
        kit.marian_files(tmp_path, kind=kind)
        ours, kind_of_theirs = made(tmp_path, family, marian.tokenizer_rules), MarianTokenizer
    theirs = kind_of_theirs.from_pretrained(tmp_path)
    for text in ("the boat , the house .", "a house . the old harbour ,"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids) != ours.decode_split(ids)


def test_what_is_settled_does_not_change():
    draw, alphabet = random.Random(1), " '.ntsmver,?!a"
    for _ in range(20_000):
        text = "".join(draw.choices(alphabet[: draw.choice((2, 5, 14))], k=draw.randint(1, 14)))
        sent = ""
        for end in range(len(text) + 1):
            beginning = clean_up(settled(text[:end]))
            assert beginning.startswith(sent)
            sent = beginning
        assert clean_up(text).startswith(sent)
