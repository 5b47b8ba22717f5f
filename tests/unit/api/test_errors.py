"""Words that errors share."""

from __future__ import annotations

import copy
import difflib
import pickle

import pytest

from vlm.errors import AdapterNotFoundError, LimitError, built_for, counted, counted_given, meant


@pytest.mark.parametrize("error", [AdapterNotFoundError("it is gone"), LimitError("no", "less", settings=("lora",))])
def test_an_error_that_another_process_gets_says_the_same(error):
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error) and str(other) == str(error) and vars(other) == vars(error)


@pytest.mark.parametrize(
    ("name", "words"),
    [("txt", " (is it text?)"), ("max_token", " (is it max_tokens or max_new_tokens?)"), ("seed", ""), ("", "")],
)
def test_a_name_that_is_nearly_another_one(name, words):
    assert meant(name, ("text", "max_tokens", "max_new_tokens")) == words
    assert meant(name, ()) == ""


def test_a_name_of_many_bytes_is_not_compared(monkeypatch):
    """A client chooses it: 16 million characters took 1.5 s and 600 MiB."""
    monkeypatch.setattr(difflib, "get_close_matches", None)  # which would be a call of None
    assert meant("ab" * 20, ("text", "max_tokens")) == ""
    with pytest.raises(TypeError):
        meant("ab" * 10, ("text", "max_tokens"))


def test_one_thing_and_several_of_them():
    assert [counted(count, "page") for count in (0, 1, 2000)] == ["0 pages", "1 page", "2,000 pages"]
    assert [counted(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]
    assert [counted_given(count, "image") for count in (1, 2)] == ["1 image was given", "2 images were given"]


def test_what_gives_an_engine_that_holds_more():
    longer = "or give max_seq_len 9, to vlm build where the model is an engine"
    assert built_for("max_seq_len", 9) == built_for("max_seq_len", 9, 9) == longer
    assert built_for("max_seq_len", 9, 8) == ""  # the model has no more positions
