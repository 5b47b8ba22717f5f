"""M2M100, NLLB-200 and Marian with texts and language codes against Hugging Face: ids of their own tokenizers, and a
language of its own for each request."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoTokenizer, M2M100Tokenizer, MarianTokenizer, NllbTokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

import vlm
from llm_engines.families import m2m100
from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.publications import translation_kit as kit
from vlm.errors import CheckpointError, InputError

pytest.importorskip("sentencepiece")
TEXTS = ["the house is small", "The  old boat , is in   the harbour. ", "xyz 日 new", "日本", "a </s> boat", "ﬁne ½ ö"]
NLLB = ("eng_Latn", "fra_Latn", "zho_Hans")
NEW = 6


def loaded(folder):
    return vlm.load(folder, device="cpu", cache_dir=folder / "cache", max_batch_size=4, max_seq_len=24)


@torch.no_grad()
def theirs(model, ids: list[int], **options) -> list[int]:
    return tiny.hf_text(model, ids, NEW, num_beams=2, **options)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_m2m100_as_published(kind, tmp_path):
    kit.m2m100_files(tmp_path, kind)
    hf = M2M100Tokenizer.from_pretrained(tmp_path)
    model = tiny.m2m100(seed=5, vocab_size=len(hf.encoder) + 108)
    model.save_pretrained(tmp_path)
    pipe = loaded(tmp_path)
    for text in TEXTS:
        for source in ("en", "zu"):
            hf.src_lang = source
            assert pipe.tokenizer.encode_source(text, language=source) == hf(text)["input_ids"], text
    language, *ids = hf("the house is small")["input_ids"]
    assert pipe.tokenizer.decode(ids) == hf.decode(ids, skip_special_tokens=True) == "the house is small"
    assert pipe.tokenizer.decode([language, *ids]) == "the house is small", "codes are no text"
    inputs = [{"text": TEXTS[i], "src_lang": s, "tgt_lang": t}
              for i, (s, t) in enumerate([("en", "de"), ("__en__", "fr"), ("zu", "__zh__")])]  # fmt: skip
    found = pipe.generate(inputs, max_new_tokens=NEW, num_beams=2)
    for given, out in zip(inputs, found, strict=True):
        hf.src_lang = given["src_lang"].strip("_")
        forced = {"forced_bos_token_id": hf.get_lang_id(given["tgt_lang"].strip("_"))}
        assert out.token_ids == theirs(model, hf(given["text"])["input_ids"], **forced)
    with pytest.raises(InputError, match="'eng_Latn' is unknown; this model knows af, am"):
        pipe.generate(text="a", src_lang="eng_Latn", tgt_lang="de")
    assert {name: codes.split() for name, codes in m2m100.CODES.items()} == FAIRSEQ_LANGUAGE_CODES


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb_as_published(legacy, tmp_path):
    kit.nllb_files(tmp_path, NLLB, legacy_behaviour=legacy)
    hf = NllbTokenizer.from_pretrained(tmp_path)
    model = tiny.m2m100(seed=5, vocab_size=len(hf))
    model.save_pretrained(tmp_path)
    pipe = loaded(tmp_path)
    assert pipe.tokenizer.encode_source("the house") == hf("the house")["input_ids"]  # from English
    inputs = [{"text": text, "src_lang": s, "tgt_lang": t}
              for text in ("the house is small", "oil </s> mole") for s in NLLB for t in NLLB]  # fmt: skip
    found = pipe.generate(inputs, max_new_tokens=NEW, num_beams=2)
    for given, out in zip(inputs, found, strict=True):
        hf.src_lang = given["src_lang"]
        forced = {"forced_bos_token_id": hf.convert_tokens_to_ids(given["tgt_lang"])}
        assert out.token_ids == theirs(model, hf(given["text"])["input_ids"], **forced)
        assert not any(code in out.text for code in NLLB), "codes are no text"


def marian(folder, **files):
    """Returns Hugging Face's tokenizer and model of a folder, and ours."""
    kit.marian_files(folder, **files)
    hf = MarianTokenizer.from_pretrained(folder)
    pad = hf.pad_token_id
    sizes = {"vocab_size": len(hf.encoder), "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    if hf.separate_vocabs:
        pad = hf.target_encoder["<pad>"]
        sizes |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": len(hf.target_encoder)}
        sizes |= {"decoder_start_token_id": pad, "pad_token_id": pad}
    model = tiny.marian(logits_bias=True, bad_words_ids=[[pad]], **sizes)
    model.save_pretrained(folder)
    return hf, model, loaded(folder)


@pytest.mark.parametrize("files", [{}, {"kind": "bpe"}, {"separate": True}], ids=["shared", "bpe", "two vocabularies"])
def test_marian_of_one_pair(files, tmp_path):
    hf, model, pipe = marian(tmp_path, **files)
    # of BPE, characters that no piece has are looked up one by one, not all that follow each other at once
    texts = [text for text in TEXTS if text != "日本" or "kind" not in files]
    found = pipe.generate([{"text": text} for text in texts], max_new_tokens=NEW, num_beams=2)
    for text, out in zip(texts, found, strict=True):
        ids = hf(text)["input_ids"]
        assert pipe.tokenizer.encode_source(text) == ids, text
        assert out.token_ids == theirs(model, ids)
        assert out.text == hf.decode(out.token_ids, skip_special_tokens=True)
    with pytest.raises(InputError, match="takes no language codes"):
        pipe.generate(text="a", tgt_lang="de")
    assert pipe.tokenizer.pair == ("en", "de")


def test_marian_of_several_targets(tmp_path):
    """The language is an option, or stands in the text."""
    hf, model, pipe = marian(tmp_path, codes=("fra", "por_Latn"))
    for text in TEXTS:
        want = hf(f">>fra<< {text}")["input_ids"]
        for given in ({"tgt_lang": "fra"}, {"tgt_lang": ">>fra<<", "src_lang": "eng"}):
            out = pipe.generate({"text": text, **given}, max_new_tokens=NEW, num_beams=2)
            assert out.token_ids == theirs(model, want)
        assert pipe.tokenizer.encode_source(f">>fra<< {text}") == want
        assert pipe.tokenizer.encode_source(text, target="por_Latn") == hf(f">>por_Latn<< {text}")["input_ids"]
    with pytest.raises(InputError, match="'de' is unknown; this model knows fra, por_Latn"):
        pipe.generate(text="a", tgt_lang="de")


def test_madlad_400(tmp_path):
    kit.madlad_files(tmp_path, ("en", "de", "zh_Hant"))
    hf = AutoTokenizer.from_pretrained(tmp_path)
    tiny.t5(vocab_size=len(hf), eos_token_id=2, pad_token_id=1, feed_forward_proj="gated-gelu").save_pretrained(
        tmp_path
    )
    pipe = loaded(tmp_path)
    for text in TEXTS:
        for code in ("de", "zh_Hant"):
            want = hf(f"<2{code}> {text}")["input_ids"]
            assert pipe.tokenizer.encode_source(text, target=code) == want
            assert pipe.tokenizer.encode_source(f"<2{code}> {text}") == want
    first = [*hf("<2de> the")["input_ids"][:4], 2]
    assert pipe.tokenizer.encode_source("the house " * 9, target="de", limit=5) == first
    with pytest.raises(InputError, match="'fr' is unknown; this model knows de, en, zh_Hant"):
        pipe.generate(text="a", tgt_lang="fr")


@pytest.mark.parametrize(
    ("missing", "says"),
    [("source.spm", "has a target.spm and lacks source.spm"), ("target.spm", "has a source.spm and lacks target.spm"),
     ("vocab.json", "has a source.spm and lacks vocab.json"),
     ("target_vocab.json", "has separate_vocabs in its tokenizer_config.json and lacks target_vocab.json")],
)  # fmt: skip
def test_a_file_of_marian_is_missing(missing, says, tmp_path):
    kit.marian_files(tmp_path, separate=True)
    (tmp_path / missing).unlink()
    tiny.marian().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"{says}, which splits texts; fetch it from where"):
        loaded(tmp_path)


def test_m2m100_without_its_pieces_or_with_a_damaged_vocabulary(tmp_path):
    kit.m2m100_files(tmp_path)
    tiny.m2m100().save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"<s>": 10**12}))
    with pytest.raises(CheckpointError, match="is no vocabulary: '<s>' has the id 1000000000000"):
        loaded(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"<s>": 0, "</s>": 1}))
    with pytest.raises(CheckpointError, match="lacks <pad>, <unk>"):
        loaded(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    with pytest.raises(CheckpointError, match=r"has a vocab.json and lacks sentencepiece.bpe.model"):
        loaded(tmp_path)


def test_on_the_command_line(tmp_path):
    kit.nllb_files(tmp_path / "nllb", NLLB)
    tiny.m2m100(vocab_size=40).save_pretrained(tmp_path / "nllb")
    _, _, pipe = marian(tmp_path / "marian", codes=("fra", "por"))
    ask = lambda name, *more: call(  # noqa: E731
        "translate", "the house", "--model", tmp_path / name, "--device", "cpu", "--max-new-tokens", NEW, *more
    )
    done = ask("nllb", "--src-lang", "eng_Latn", "--tgt-lang", "fra_Latn")
    assert done.exit_code == 0, done.stderr
    done = ask("nllb", "--src-lang", "eng_Latn", "--tgt-lang", "fr")
    assert done.exit_code == 2 and "'fr' is unknown; this model knows eng_Latn, fra_Latn, zho_Hans" in done.stderr
    assert "--tgt-lang is missing" in ask("nllb").stderr
    want = pipe.generate(text="the house", tgt_lang="por", max_new_tokens=NEW).text
    assert ask("marian", "--src-lang", "en", "--tgt-lang", "por").stdout == f"{want}\n"
    assert ask("marian", "--prefix", ">>por<< ").stderr.count("give --src-lang and --tgt-lang instead of --prefix") == 1
