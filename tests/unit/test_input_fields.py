"""Inputs become values with a name for each of their fields."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch

from vlm.artifacts.engine_dir import EngineDir
from vlm.build.store import resolve
from vlm.errors import InputError
from vlm.processing.input_fields import InputFields
from vlm.processing.processor import Processor


@pytest.fixture(scope="module")
def builder():
    return Processor.from_engine(EngineDir.open(resolve("mini-t5"), verify=False)).request_builder


def test_what_is_none_is_no_field():
    fields = InputFields.from_mapping({"text": "a", "suffix": None, "truncate": False})
    assert fields.given() == {"text": "a", "truncate": False}


@pytest.mark.parametrize("source", [{"txt": "a", "text": "b"}, {"txt": None}, MappingProxyType({"txt": "a"})])
def test_unknown_names(source):
    with pytest.raises(InputError, match=r"^txt is unknown in an input; allowed are images, text, .*, lora\.$"):
        InputFields.from_mapping(source)


def test_names_that_are_no_texts():
    with pytest.raises(InputError, match=r"^1 is unknown in an input"):
        InputFields.from_mapping({1: "a"})


def test_to_read_an_input_changes_nothing_of_it(builder):
    source = {"input_ids": [5, 6], "prompt_table": torch.ones(2, 64)}
    before = dict(source)
    size = builder.context.vocab_size
    assert list(builder.read(source).encoder_input_ids) == [size, size + 1, 5, 6]
    assert source == before and all(source[name] is before[name] for name in source)


def test_what_was_read_may_be_read_again(builder):
    first = builder.read({"input_ids": [5, 6], "prompt_table": torch.ones(2, 64), "truncate": 4})
    assert builder.read(first.given()) == first


@pytest.mark.parametrize("bad", [-1, 10**6, 2**70])
def test_ids_that_are_no_tokens(builder, bad):
    with pytest.raises(InputError, match=rf"^token id {bad} is outside the vocabulary of \d+; give ids of this model"):
        builder.read({"input_ids": [5, bad, -7]})
