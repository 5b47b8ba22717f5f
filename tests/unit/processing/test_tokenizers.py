"""Tokenizers of text models: made where a folder has none, language codes, cutting, strings at which to stop."""

from __future__ import annotations

import json
import sys
import warnings

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from transformers import AutoTokenizer, ByT5Tokenizer

from llm_engines.families.bart import tokenizer_rules
from llm_engines.tokenizers.byte_tokenizer import byte_tokenizer
from tests.kits.publications.nemo_kit import sentencepiece_file
from vlm.api.outputs import text_stream
from vlm.build.locate import packaged_models
from vlm.convert.tokenizer_files import make_tokenizer
from vlm.errors import CheckpointError, InputError, LengthError
from vlm.processing.text.stream import StopStrings, TextStream, before_stop
from vlm.processing.text.token_bounds import TokenBound
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.catalogs import families
from vlm.registry.tokenizer_rules import no_rules
from vlm.requests.sampling_params import SamplingParams

TEXTS = ["Der Bär läuft.", "tab\tand\nline", "  two  spaces  ", "日本語 👍🏽", "a"]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ["t5", "t5-encoder"])
def test_a_text_of_bytes_that_ends_itself_is_not_ended_twice(family, side, tmp_path):
    theirs = ByT5Tokenizer(truncation_side=side)
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer(125))
    config = {"tokenizer_class": "ByT5Tokenizer", "truncation_side": side}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_dir(tmp_path, families()[family].tokenizer_rules)
    texts = ["a house", "a house</s>", "a house </s>  ", "</s>", "a</s></s>", "a</s> house", "a<pad>", "a </s>b</s>"]
    for text in texts:
        with warnings.catch_warnings(action="ignore"):  # of theirs, that there may be two in future versions
            assert tokenizer.encode_source(text) == theirs(text).input_ids, text
            for most in range(2, 9):
                want = theirs(text, truncation=True, max_length=most).input_ids
                assert tokenizer.encode_source(text, limit=most) == want, (text, most)


def test_bytes_as_byt5_has_them():
    fast, theirs = FastTokenizer.from_str(byte_tokenizer(125)), ByT5Tokenizer()
    ours = Tokenizer(fast)
    for text in TEXTS:
        assert ours.encode_source(text) == theirs(text).input_ids
        assert ours.decode(theirs(text).input_ids) == text
    assert fast.token_to_id("<extra_id_0>") == theirs.convert_tokens_to_ids("<extra_id_0>")


@pytest.mark.parametrize("shown", [False, True], ids=["without special tokens", "with them"])
def test_half_characters_of_bytes_are_left_out_as_by_byt5(shown, tmp_path):
    """Where an output is cut, or the model wrote no character; streams are the same text."""
    theirs = ByT5Tokenizer()
    config = {"tokenizer_class": "ByT5Tokenizer"}
    ours = saved(tmp_path, FastTokenizer.from_str(byte_tokenizer(125)), families()["t5"].tokenizer_rules, **config)
    ours = ours.showing(special_tokens=shown)
    whole = theirs("aö日👍🏽</s>b", add_special_tokens=False).input_ids
    for ids in (*(whole[:n] for n in range(len(whole) + 1)), [198, 100, 230, 260, 155, 169], [197, 1, 185], [258, 100]):
        want = theirs.decode(ids, skip_special_tokens=not shown)
        assert ours.decode(ids) == want
        stream = TextStream(ours)
        assert "".join([*(stream.push((token,)) for token in ids), stream.push((), last=True)]) == want
    for text in ("a </s> b", "<pad> a", "the <unk>  <extra_id_3> end"):
        assert ours.encode_source(text) == theirs(text).input_ids


def words(*extra: str) -> FastTokenizer:
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "the", "house", "is", "small", ".", *extra]
    fast = FastTokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", *extra])
    return fast


def saved(folder, fast, read_rules=no_rules, **config) -> Tokenizer:
    (folder / "tokenizer.json").write_text(fast.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_dir(folder, read_rules)


@pytest.mark.parametrize("model", ["mini-t5", "mini-llava"])
def test_strings_are_found_in_the_end_of_a_long_output(model, monkeypatch):
    """Decodes the end alone; what it finds is what a look at all would find."""
    tokenizer = Tokenizer.from_dir(packaged_models()[model])
    ids = tokenizer.encode("The old ship is small and the new house is big. " * 20)
    text, lengths = tokenizer.decode(ids), []
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: lengths.append(len(ids)) or decode(self, ids))
    for begin in (0, 3, 40, 400, 700):
        for size in (1, 2, 7, 60):
            stops, wanted = StopStrings(tokenizer, (text[begin : begin + size],)), text.find(text[begin : begin + size])
            end = next(n for n in range(1, len(ids) + 1) if len(decode(tokenizer, ids[:n])) >= wanted + size)
            known = max(0, end - 3)
            assert stops.end(ids[:known], max(0, known - 5)) is None
            assert stops.end(ids[: end + 4], known) == end
            assert stops.end([*ids, *ids[: end + 4]], len(ids) + known, start=len(ids)) == len(ids) + end
    lengths.clear()
    assert StopStrings(tokenizer, ("nowhere",)).end(ids, len(ids) - 4) is None and max(lengths) <= 40


def test_what_is_no_unicode_is_said():
    with pytest.raises(InputError, match="is not valid Unicode"):
        Tokenizer(words()).encode("the \udcff house")


def test_a_text_is_cut_between_its_special_tokens(tmp_path):
    fast = words()
    fast.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = saved(tmp_path, fast)
    assert tokenizer.encode_source("the house is small .") == [0, 4, 5, 6, 7, 8, 2]
    assert tokenizer.encode_source("the house is small .", limit=5) == [0, 4, 5, 6, 2]
    with pytest.raises(InputError, match="no language codes"):
        tokenizer.encode_source("the house", language="de_DE")


@pytest.mark.parametrize(
    ("kind", "want"),
    [("MBart50Tokenizer", [9, 4, 5, 2]), ("MBart50TokenizerFast", [9, 4, 5, 2]), ("MBartTokenizer", [4, 5, 2, 9])],
)
def test_the_sources_language_goes_where_the_model_expects_it(tmp_path, kind, want):
    tokenizer = saved(tmp_path, words("de_DE", "en_XX"), tokenizer_rules, tokenizer_class=kind)
    assert tokenizer.encode_source("the house", language="de_DE") == want
    assert tokenizer.languages.id("en_XX") == 10
    with pytest.raises(InputError, match="missing"):
        tokenizer.encode_source("the house")
    with pytest.raises(InputError, match=r"'xx' is unknown; this model knows de_DE, en_XX"):
        tokenizer.encode_source("the house", language="xx")
    with_default = saved(tmp_path, words("de_DE", "en_XX"), tokenizer_rules, tokenizer_class=kind, src_lang="de_DE")
    assert with_default.encode_source("the house") == want


def test_stop_strings_and_streams(tmp_path):
    fast = words()
    tokenizer = saved(tmp_path, fast)
    ids = fast.encode("the house is small . the").ids
    stops = StopStrings(tokenizer, ("small .", "never"))
    assert stops.end(ids[:4], 0) is None and stops.end(ids, 4) == 5 and stops.end(ids, 2) == 5
    assert before_stop("the house is small .", ("is", "house")) == "the "
    stream = TextStream(tokenizer, ("small .",))
    pieces = [stream.push((token,), last=i == len(ids) - 1) for i, token in enumerate(ids)]
    assert "".join(pieces) == "the house is "
    stream = TextStream(tokenizer, ("small !",))
    assert "".join(stream.push((t,), last=i == len(ids) - 1) for i, t in enumerate(ids)) == "the house is small . the"


def test_stop_strings_that_stay_in_the_text(tmp_path):
    tokenizer = saved(tmp_path, fast := words())
    assert before_stop("the house is small .", ("is", "house"), keep=True) == "the house"
    ids = fast.encode("the house is small . the").ids
    stream = TextStream(tokenizer, ("small .",), keep_stop=True)
    assert "".join(stream.push((t,), last=i == len(ids) - 1) for i, t in enumerate(ids)) == "the house is small ."


def test_special_tokens_may_be_shown(tmp_path):
    tokenizer = saved(tmp_path, fast := words())
    ids = [*fast.encode("the house").ids, fast.token_to_id("</s>")]
    shown = tokenizer.showing(special_tokens=True)
    assert (tokenizer.decode(ids), shown.decode(ids)) == ("the house", "the house </s>")
    assert StopStrings(shown, ("</s>",)).end(ids, 0) == 3 and StopStrings(tokenizer, ("</s>",)).end(ids, 0) is None
    params = SamplingParams(skip_special_tokens=False)
    stream = text_stream(tokenizer, params)
    assert "".join(stream.push((t,), last=i == 2) for i, t in enumerate(ids)) == "the house </s>"


def test_a_folder_without_tokenizer_and_a_damaged_configuration(tmp_path):
    assert make_tokenizer(tmp_path) == {}
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        make_tokenizer(tmp_path)


def test_byte_level_bpe_files(tmp_path):
    """vocab.json and merges.txt, as BART's first releases have them."""
    signs = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "Ġ": 7, "Ġab": 8}
    (tmp_path / "vocab.json").write_text(json.dumps(signs))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n")
    tokenizer = Tokenizer(FastTokenizer.from_str(make_tokenizer(tmp_path)["tokenizer.json"]))
    assert tokenizer.encode_source("ab ab b") == [0, 6, 8, 7, 5, 2]
    assert tokenizer.decode([0, 6, 8, 2]) == "ab ab"


@pytest.mark.parametrize("vocab", [b"{", b"[]", b'{"a": -1}', b'{"a": 0}', b"\xff\xfe"])
def test_damaged_byte_level_bpe(vocab, tmp_path):
    (tmp_path / "vocab.json").write_bytes(vocab)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(CheckpointError, match=r"the tokenizer in .* cannot be read \(Error while initializing BPE: "):
        make_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"<!DOCTYPE html>", b"", b"\n\xff\n\x05<unk>"])
def test_a_damaged_sentencepiece_file_is_named(content, tmp_path):
    """transformers takes it for one of tiktoken's, and asks for that to be installed."""
    (tmp_path / "spiece.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    said = "spiece.model is no SentencePiece model, or damaged" if content else "spiece.model is empty"
    with pytest.raises(CheckpointError, match=said):
        make_tokenizer(tmp_path)


def test_a_sentencepiece_file_that_no_class_reads_is_told(tmp_path):
    """Hugging Face has UMT5's from a tokenizer.json alone; the file is a good one."""
    sentencepiece_file(tmp_path, name="spiece")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "umt5", "tokenizer_class": "T5Tokenizer"}))
    with pytest.raises(ValueError, match="Couldn't instantiate"):
        AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"as spiece.model alone, .* put its tokenizer.json beside it"):
        make_tokenizer(tmp_path)


def test_a_class_without_a_tokenizer_json_is_named(tmp_path):
    sentencepiece_file(tmp_path, name="sentencepiece.bpe")
    (tmp_path / "dict.txt").write_text("▁the 1\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mbart", "tokenizer_class": "BartphoTokenizer"}))
    with pytest.raises(CheckpointError, match=r"names the tokenizer BartphoTokenizer, which .* and convert again,"):
        make_tokenizer(tmp_path)


def test_word_pieces_as_bert_has_them(tmp_path):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "house", "##s", "船"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = Tokenizer(FastTokenizer.from_str(make_tokenizer(tmp_path)["tokenizer.json"]))
    assert tokenizer.encode_source("The houses, 船") == [2, 5, 6, 7, 1, 8, 3]
    assert tokenizer.decode([2, 5, 6, 7, 8, 3]) == "the houses 船"


def test_a_family_makes_its_own_tokenizer(tmp_path):
    settings = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 3}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert make_tokenizer(tmp_path) == {}
    assert make_tokenizer(tmp_path, families()["t5"]) == {"tokenizer.json": byte_tokenizer(3)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"extra_ids": 10**9}))
    with pytest.raises(CheckpointError, match="has extra_ids 1000000000; 0 to 10000 are allowed"):
        make_tokenizer(tmp_path, families()["t5"])


def test_a_sentencepiece_file(tmp_path):
    pieces = pytest.importorskip("sentencepiece", reason="sentencepiece writes the file of this test")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(["the house is small", "das Haus ist klein", "a small house"] * 200))
    pieces.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "spiece"), vocab_size=60, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    tokenizer = Tokenizer(FastTokenizer.from_str(make_tokenizer(tmp_path)["tokenizer.json"]))
    reference = pieces.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    for text in ("the small house", "das Haus ist the house"):
        assert tokenizer.encode_source(text) == [*reference.encode(text), 1]
        assert tokenizer.decode(tokenizer.encode_source(text)) == text


def test_a_sentencepiece_file_that_nothing_here_reads(tmp_path, monkeypatch):
    (tmp_path / "spiece.model").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(CheckpointError, match="pip install sentencepiece"):
        make_tokenizer(tmp_path)


def test_a_long_text_is_tokenized_as_a_short_one():
    tokenizer = Tokenizer.from_dir(packaged_models()["mini-t5"])
    text = "The old ship is small." + " The new house is big." * 1000
    assert tokenizer.encode(text) == [i for part in text.split(".")[:-1] for i in tokenizer.encode(f"{part.strip()}.")]
    with pytest.raises(InputError, match="is not valid Unicode"):
        tokenizer.encode(f"{text}\udcff")


def test_a_model_of_bytes_may_name_its_tokenizer_in_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "tokenizer_class": "ByT5Tokenizer"}))
    assert make_tokenizer(tmp_path, families()["t5"]) == {"tokenizer.json": byte_tokenizer(125)}


def test_texts_that_are_read_at_once_have_the_ids_of_each_alone(monkeypatch):
    """But those of which one cannot be read, or that are looked into before they are."""
    fast, whole = FastTokenizer.from_str(byte_tokenizer(125)), [*TEXTS, "the </s> end", TEXTS[0]]
    alone = Tokenizer(fast)
    want = [alone.encode_source(text) for text in whole]
    at_once = alone.together([*whole, "a" * 10_000], limit=100)
    monkeypatch.setattr(Tokenizer, "_encoding", lambda self, text: pytest.fail(text))
    assert [at_once.encode_source(text) for text in whole] == want
    at_once.encode(TEXTS[0]).clear()
    assert at_once.encode_source(TEXTS[0]) == want[0]  # nobody changes what others get
    monkeypatch.undo()
    assert at_once.encode_source("another") == alone.encode_source("another")
    assert at_once.encode_source(TEXTS[0], limit=4) == alone.encode_source(TEXTS[0], limit=4)
    assert alone.together([*TEXTS, "\ud800"], limit=100) is alone


def test_what_a_tokenizer_bounds_texts_by_is_found_once(monkeypatch):
    """Not for each few texts that are read at once: it goes through the whole vocabulary."""
    found, find = [], TokenBound.from_tokenizer
    monkeypatch.setattr(TokenBound, "from_tokenizer", lambda fast: found.append(fast) or find(fast))
    alone, long = Tokenizer(FastTokenizer.from_str(byte_tokenizer(125))), "a" * 400
    for _ in range(3):
        with pytest.raises(LengthError, match="the text has at least"):
            alone.together(TEXTS, limit=20).check_length(long, 20)
    assert len(found) == 1
