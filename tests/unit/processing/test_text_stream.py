"""Text that grows token by token is the text of all tokens, and never shows half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from llm_engines.tokenizers.moses import Moses
from vlm.packaged import MODEL, packaged
from vlm.processing.text import stream as text_stream
from vlm.processing.text.clean_up import clean_up
from vlm.processing.text.stream import StopStrings, TextStream, before_stop
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.tokenizer_rules import WordSplitter


def llama_like() -> Tokenizer:
    """Spaces as ▁, the first one dropped; characters that are no tokens as bytes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁the", "."]
    fast = FastTokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, "<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(parts)
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(fast)


TOKENIZERS = {"llama-like": llama_like(), **{name: Tokenizer.from_dir(path) for name, path in packaged(MODEL).items()}}


def pieces(tokenizer: Tokenizer, ids: list[int], sizes: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    """What comes of bursts of these sizes, the last one as long as need be."""
    stream, found = TextStream(tokenizer, stop), []
    for size in sizes:
        found.append(stream.push(tuple(ids[:size])))
        ids = ids[size:]
    return [*found, stream.push(tuple(ids), last=True)]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_make_up_the_text(name):
    tokenizer = TOKENIZERS[name]
    # bytes that make no character spoil those beside them when they come
    known = [i for i in range(tokenizer._fast.get_vocab_size()) if not tokenizer._fast.id_to_token(i).startswith("<0x")]

    @settings(deadline=None, database=None, max_examples=100)
    @given(st.lists(st.sampled_from(known), min_size=1, max_size=40), st.lists(st.integers(1, 5), max_size=12))
    def check(ids, sizes):
        assert "".join(pieces(tokenizer, ids, sizes)) == tokenizer.decode(ids)

    check()


@settings(deadline=None, database=None)
@given(st.text(max_size=20), st.lists(st.integers(1, 3), max_size=40))
def test_characters_of_several_tokens_come_whole(text, sizes):
    tokenizer = TOKENIZERS["llama-like"]
    data = text.encode("utf-8", "ignore").replace(b"\xef\xbf\xbd", b"")
    found = pieces(tokenizer, [3 + byte for byte in data], sizes)
    assert "".join(found) == data.decode().removeprefix(" ")
    assert not any("\ufffd" in piece for piece in found)


def test_a_long_stream_decodes_only_its_end(monkeypatch):
    tokenizer = TOKENIZERS["mini-llava"]
    ids, decoded = tokenizer.encode("the sign says GCV3U. ") * 100, []
    decode = tokenizer.decode_split
    monkeypatch.setattr(tokenizer, "decode_split", lambda tokens: decoded.append(len(tokens)) or decode(tokens))
    stream = TextStream(tokenizer)
    text = "".join(stream.push((token,)) for token in ids)
    assert decode(ids).startswith(text) and len(text) > 1900
    assert max(decoded) < 10


class Written:
    """A tokenizer of words as they are written, which takes out blanks before signs, or has a splitter join them."""

    def __init__(self, words: list[str], splitter: WordSplitter | None = None):
        self._words, self.splitter, self.cleans_up = words, splitter, splitter is None

    def decode_split(self, token_ids: list[int]) -> str:
        return "".join(self._words[token] for token in token_ids)

    def decode(self, token_ids: list[int]) -> str:
        text = self.decode_split(token_ids)
        return self.splitter.join(text) if self.splitter else clean_up(text)


@settings(deadline=None, database=None, max_examples=500)
@given(
    st.lists(st.sampled_from([" ", " .", "  '", "' ", " n't", "'", "s", " a", "bcde", "n't", " 'm", "."]), max_size=40),
    st.lists(st.integers(1, 3), max_size=40),
    st.sampled_from([(), ("a.",), ("' ", "'sb")]),
)
def test_pieces_of_a_text_that_is_cleaned_up(words, sizes, stop):
    tokenizer, ids = Written(words), [*range(len(words))]
    assert "".join(pieces(tokenizer, ids, sizes, stop)) == before_stop(tokenizer.decode(ids), stop)


def test_a_long_text_costs_each_delta_no_more_than_a_short_one(monkeypatch):
    tokenizer, lengths = Written([" word", " .", " it", " 's"]), []
    for name, sees in ("clean_up", clean_up), ("before_stop", before_stop):
        monkeypatch.setattr(
            text_stream, name, lambda text, *a, sees=sees, **b: lengths.append(len(text)) or sees(text, *a, **b)
        )
    stream = TextStream(tokenizer, ("never", "nowhere"))
    text = "".join(stream.push((number % 4,)) for number in range(4000))
    assert tokenizer.decode([number % 4 for number in range(4000)]).startswith(text) and len(text) > 9000
    assert max(lengths) < 30


SIGNS = (
    ", . ? &quot; &apos; &apos;s s &apos;&apos; `` ( ) $ l&apos; d&apos; \u201e \u201c \u201d 日 本 。 @-@ - EU: n cats"
).split()


@pytest.mark.parametrize("language", ["en", "fr", "de", "fi", "zh"])
def test_pieces_of_words_that_moses_joins(language):
    pytest.importorskip("sacremoses")

    @settings(deadline=None, database=None, max_examples=100)
    @given(
        st.lists(st.sampled_from(SIGNS), min_size=1, max_size=40),
        st.lists(st.integers(1, 3), max_size=40),
        st.sampled_from([1, 4, text_stream.MOST_WORDS]),
    )
    def check(words, sizes, most):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_stream, "MOST_WORDS", most)
            tokenizer = Written([f" {word}" for word in words], Moses("en", language))
            assert "".join(pieces(tokenizer, [*range(len(words))], sizes)) == tokenizer.decode([*range(len(words))])

    check()


def test_a_long_text_of_joined_words_costs_each_delta_no_more_than_a_short_one(monkeypatch):
    pytest.importorskip("sacremoses")
    moses, lengths = Moses("de", "en"), []
    join = moses.join
    monkeypatch.setattr(moses, "join", lambda text: lengths.append(len(text.split())) or join(text))
    ids, tokenizer = [*range(4000)], Written([" &quot;", " the", " cats", " &apos;s", " ,"] * 800, moses)
    stream = TextStream(tokenizer)
    text = "".join(stream.push((token,)) for token in ids)
    assert max(lengths) <= text_stream.MOST_WORDS
    assert tokenizer.decode(ids).startswith(text) and len(text) > 9000


@pytest.mark.parametrize("language", ["en", "fr", "de", "fi", "zh"])
def test_strings_are_found_in_words_that_moses_joins(language):
    """Where a look at the whole text after each burst finds them."""
    pytest.importorskip("sacremoses")
    words = [*SIGNS, "a", "long-word-without-an-end", "&amp;lt;"]

    @settings(deadline=None, database=None, max_examples=150)
    @given(st.lists(st.sampled_from(words), min_size=1, max_size=60), st.integers(1, 5), st.data())
    def check(words, burst, data):
        tokenizer, ids = Written([f" {word}" for word in words], Moses("en", language)), [*range(len(words))]
        text = tokenizer.decode(ids)
        begin = data.draw(st.integers(0, len(text) - 1))
        string = text[begin : begin + data.draw(st.integers(1, 6))]
        stops, known = StopStrings(tokenizer, (string,)), 0
        while known < len(ids):
            tokens = ids[: known + burst]
            ends = [n for n in range(known + 1, len(tokens) + 1) if string in tokenizer.decode(tokens[:n])]
            wanted = ends[0] if ends and string in tokenizer.decode(tokens) else None
            assert stops.end(tokens, known) == wanted
            if wanted is not None:
                return
            known += burst

    check()


def test_stop_strings_cost_each_joined_word_no_more_the_longer_a_text_is(monkeypatch):
    pytest.importorskip("sacremoses")
    moses, lengths = Moses("de", "en"), []
    join, tokenizer = moses.join, Written([" &quot;", " the", " cats", " &apos;s", " ,"] * 800, moses)
    decode = tokenizer.decode_split
    monkeypatch.setattr(moses, "join", lambda text: lengths.append(len(text)) or join(text))
    monkeypatch.setattr(tokenizer, "decode_split", lambda ids: lengths.append(len(ids)) or decode(ids))
    stops = StopStrings(tokenizer, ("never", "the dog"))
    assert all(stops.end([*range(end)], end - 1) is None for end in range(1, 4001))
    assert max(lengths) <= 40
