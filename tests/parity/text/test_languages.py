"""mBART and mBART-50 with texts and language codes, many to many, against Hugging Face."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

import vlm
from tests.kits.models import tiny
from vlm.errors import InputError, LimitError

WORDS = [f"w{i}" for i in range(50)]
CODES = ["de_DE", "en_XX", "fr_XX", "ro_RO"]
TEXTS = ["w1 w2 w3", "w40", "w7 w7 w9 w30 w2 w11 w12", "w5 w6"]
ROUTES = [("de_DE", "en_XX"), ("en_XX", "fr_XX"), ("fr_XX", "ro_RO"), ("de_DE", "fr_XX")]


@pytest.fixture(scope="module", params=["MBart50Tokenizer", "MBartTokenizer"])
def subject(request, tmp_path_factory):
    """(model, folder, where the source's code goes)"""
    vocabulary = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS, *CODES])}
    fast = FastTokenizer(models.WordLevel(vocabulary, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", *CODES])
    model = tiny.bart(seed=4, multilingual=True, vocab_size=len(vocabulary))
    folder = tmp_path_factory.mktemp("mbart") / "model"
    model.save_pretrained(folder)
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": request.param}))
    return model, folder, vocabulary, request.param


def test_every_request_has_its_own_languages(subject, tmp_path):
    model, folder, vocabulary, kind = subject
    ids = lambda words: [vocabulary[word] for word in words.split()]  # noqa: E731
    want = []
    for text, (source, target) in zip(TEXTS, ROUTES, strict=True):
        ends = ids(f"{source} {text} </s>") if kind == "MBart50Tokenizer" else ids(f"{text} </s> {source}")
        start = 2 if kind == "MBart50Tokenizer" else vocabulary[target]
        forced = {"forced_bos_token_id": vocabulary[target]} if kind == "MBart50Tokenizer" else {}
        with torch.no_grad():
            out = model.generate(
                torch.tensor([ends]), decoder_start_token_id=start, max_new_tokens=15, do_sample=False,
                num_beams=3, **forced,
            )[0, 1:].tolist()  # fmt: skip
        want.append(out[: out.index(2) + 1] if 2 in out else out)
    assert len({tuple(tokens) for tokens in want}) == len(TEXTS)
    pipe = vlm.load(folder, device="cpu", cache_dir=tmp_path, max_encoder_input_len=16)
    inputs = [{"text": t, "src_lang": s, "tgt_lang": g} for t, (s, g) in zip(TEXTS, ROUTES, strict=True)]
    found = pipe.generate(inputs, max_new_tokens=15, num_beams=3)
    assert [out.token_ids for out in found] == want
    assert not any(code in out.text for out in found for code in CODES), "codes are no text"


def test_a_prompt_stands_behind_the_targets_language(subject, tmp_path):
    model, folder, vocabulary, kind = subject
    ids = lambda words: [vocabulary[word] for word in words.split()]  # noqa: E731
    ends = ids("de_DE w1 w2 </s>") if kind == "MBart50Tokenizer" else ids("w1 w2 </s> de_DE")
    start = ids("</s> fr_XX w7 w9") if kind == "MBart50Tokenizer" else ids("fr_XX w7 w9")
    with torch.no_grad():
        out = model.generate(
            torch.tensor([ends]),
            decoder_input_ids=torch.tensor([start]),
            decoder_start_token_id=start[0],
            max_new_tokens=8,
            do_sample=False,
        )[0, len(start) :].tolist()
    pipe = vlm.load(folder, device="cpu", cache_dir=tmp_path, max_encoder_input_len=16)
    given = {"text": "w1 w2", "src_lang": "de_DE", "tgt_lang": "fr_XX", "prompt": "w7 w9"}
    assert pipe.generate(given, max_new_tokens=8).token_ids == out


def test_what_is_wrong_with_a_text_is_said(subject, tmp_path):
    _, folder, *_ = subject
    pipe = vlm.load(folder, device="cpu", cache_dir=tmp_path, max_encoder_input_len=16)
    ask = lambda **fields: pipe.generate({"src_lang": "de_DE", "tgt_lang": "en_XX", "text": "w1"} | fields)  # noqa: E731
    for fields, kind, words in (
        ({"text": ""}, InputError, "empty"),
        ({"text": " \n"}, InputError, "empty"),
        ({"text": 5}, InputError, "string"),
        ({"tgt_lang": "en"}, InputError, "'en' is unknown; this model knows de_DE, en_XX"),
        ({"src_lang": "xx_XX"}, InputError, "'xx_XX' is unknown"),
        (
            {"text": "w1 " * 15},
            LimitError,
            "17 tokens, the engine was built for 16.*with truncate.*_input_len 17, to vlm",
        ),
        ({"images": ["a.png"]}, InputError, "text, not images"),
        ({"encoder_input_ids": [5, 2]}, InputError, "text, encoder_input_ids were given together"),
    ):
        with pytest.raises(kind, match=words):
            ask(**fields)
    assert ask(text="w1 " * 15, truncate=True).token_ids == ask(text="w1 " * 14).token_ids
    longest = vlm.load(folder, device="cpu", cache_dir=tmp_path)
    with pytest.raises(LimitError, match=r"112 tokens, .* for 96; shorten it, cut it with truncate\.$"):
        longest.generate(text="w1 " * 110, src_lang="de_DE", tgt_lang="en_XX")  # the model has no more positions


@pytest.mark.parametrize(
    ("named", "source_first"), [("MBart50Tokenizer", True), ("MBartTokenizer", False), (None, False)]
)
def test_a_tokenizers_class_may_be_named_by_the_models_config_alone(subject, tmp_path, named, source_first):
    """As facebook/mbart-large-50-many-to-many-mmt is published; where nothing names one, the model's type does."""
    _, folder, vocabulary, _ = subject
    copied = shutil.copytree(folder, tmp_path / "model")
    (copied / "tokenizer_config.json").write_text(json.dumps({"src_lang": None, "language_codes": "ML50"}))
    config = json.loads((copied / "config.json").read_text()) | ({"tokenizer_class": named} if named else {})
    (copied / "config.json").write_text(json.dumps(config))
    languages = vlm.load(copied, device="cpu", cache_dir=tmp_path).processor.tokenizer.languages
    assert languages is not None and languages.source_first == source_first
    assert dict(languages.ids) == {code: vocabulary[code] for code in CODES}
