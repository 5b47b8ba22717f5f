"""Inputs become values with a name for each of their fields."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
import torch

import vlm
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.store import resolve
from vlm.errors import InputError
from vlm.processing.inputs.fields import InputFields
from vlm.processing.processor import Processor
from vlm.requests.sampling_params import SamplingParams


def builder_of(model):
    return Processor.from_engine(EngineDir.open(resolve(model), verify=False)).request_builder


@pytest.fixture(scope="module")
def builder():
    return builder_of("mini-t5")


@pytest.fixture(scope="module")
def chat():
    """Builds requests of a model that is asked in words, with images."""
    return builder_of("mini-llava")


def test_what_is_none_is_no_field():
    fields = InputFields.from_mapping({"text": "a", "suffix": None, "truncate": False})
    assert fields.by_name() == {"text": "a", "truncate": False}


@pytest.mark.parametrize("source", [{"txt": "a", "text": "b"}, {"txt": None}, MappingProxyType({"txt": "a"})])
def test_unknown_names(source):
    said = r"^txt is unknown in an input \(is it text\?\); allowed are images, text, .*, lora\.$"
    with pytest.raises(InputError, match=said):
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
    assert builder.read(first.by_name()) == first


def test_ids_may_say_where_a_tables_rows_stand(builder):
    """As TensorRT-LLM's --input_tokens have them; without such ids the rows go before."""
    size, table = builder.context.vocab_size, torch.ones(2, 64)
    source = {"input_ids": [5, size, size + 1, 6], "prompt_table": table}
    assert list(builder.read(source).encoder_input_ids) == source["input_ids"]
    sentence = rf"^token id {size + 2} is outside the vocabulary of {size} and its prompt table of 2 rows; give ids"
    with pytest.raises(InputError, match=sentence):
        builder.read({"input_ids": [5, size + 2], "prompt_table": table})


@pytest.mark.parametrize("bad", [-1, 10**6, 2**70])
def test_ids_that_are_no_tokens(builder, bad):
    with pytest.raises(InputError, match=rf"^token id {bad} is outside the vocabulary of \d+; give ids of this model"):
        builder.read({"input_ids": [5, bad, -7]})


def test_an_array_that_is_an_image_alone(chat):
    """Python cannot say whether it is empty, and was asked so."""
    picture = np.full((40, 50, 3), 90, np.uint8)
    alone, listed = (chat.build({"images": each, "prompt": "What?"}, SamplingParams()) for each in (picture, [picture]))
    assert alone.decoder_prompt_token_ids == listed.decoder_prompt_token_ids and len(alone.images) == 1


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_arrays_of_token_ids(chat, kind):
    ids = chat.build({"decoder_prompt_token_ids": kind([5, 6, 7])}, SamplingParams()).decoder_prompt_token_ids
    assert ids == (5, 6, 7) and {type(token) for token in ids} == {int}


def test_no_images_beside_a_conversation(chat):
    """An empty list says nothing about those of the messages."""
    picture = np.full((40, 50, 3), 90, np.uint8)
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]
    source = {"messages": [{"role": "user", "content": content}]}
    assert len(chat.build({**source, "images": []}, SamplingParams()).images) == 1
    with pytest.raises(InputError, match=r"^images were given in the messages and besides them"):
        chat.build({**source, "images": picture}, SamplingParams())


@pytest.mark.parametrize("ids", [torch.tensor([[5, 6]]), 5, "ab", "12", [None], [float("inf")], [1.5]], ids=str)
def test_ids_that_are_no_list_of_numbers(builder, ids):
    """One bad input costs itself: an error of Python's ended all of a call."""
    with pytest.raises(InputError, match=r"^the input_ids are no list of token ids"):
        builder.read({"input_ids": ids})


@pytest.mark.parametrize(("source", "said"), [(5, "int."), ({"a"}, "set, give several texts as a list.")])
def test_what_is_no_text(builder, source, said):
    with pytest.raises(InputError) as caught:
        builder.read(source)
    assert str(caught.value) == f"t5 takes text; got {said}"


@pytest.mark.parametrize("field", ["prompt", "suffix"])
def test_words_that_are_no_text(builder, chat, field):
    for each, source in ((builder, {"text": "a"}), (chat, {"prompt": "a"})):
        with pytest.raises(InputError, match=rf"^the {field} must be a text; got int\.$"):
            each.build({**source, field: 3}, SamplingParams())


@pytest.mark.parametrize("pixels", [[[1]], "abc", 3, [None]], ids=str)
def test_pixels_that_are_no_image(chat, pixels):
    with pytest.raises(InputError, match=r"^pixel_values (has shape|is no array)"):
        chat.build({"pixel_values": pixels, "prompt": "What?"}, SamplingParams())


def test_pixels_of_numpy(chat):
    vision = chat.context.images.vision
    pixels = np.zeros((vision.num_channels, *vision.usual_size), np.float32)
    alone, several = (
        chat.build({"pixel_values": each, "prompt": "What?"}, SamplingParams()) for each in (pixels, pixels[None])
    )
    assert len(alone.images) == len(several.images) == 1 and torch.equal(
        alone.images[0].pixels, torch.zeros(pixels.shape)
    )


def test_a_table_that_is_none(builder):
    with pytest.raises(InputError, match=r"^the prompt table is no array but str; give floats"):
        builder.read({"text": "a", "prompt_table": "abc"})


def test_a_text_is_cut_to_a_number_of_tokens_or_not_at_all(builder):
    cut = lambda value: builder.read({"text": "a", "truncate": value}).truncation(8)  # noqa: E731
    assert [cut(value) for value in (None, False, 0, True, 3, 20)] == [None, None, None, 8, 3, 8]
    for wrong in (-1, "3", np.array([3, 4])):
        with pytest.raises(InputError, match=r"^truncate is .*; it must be true, false or a number of tokens\.$"):
            cut(wrong)


@pytest.mark.parametrize("ids", [torch.tensor([[5, 6]]), 5, "ab", torch.tensor([5.0])], ids=str)
def test_ids_by_their_own_names_that_are_no_list(builder, chat, ids):
    for reader, name in ((builder, "encoder_input_ids"), (chat, "decoder_prompt_token_ids")):
        with pytest.raises(InputError, match=rf"^the {name} are no list of token ids"):
            reader.read({name: ids})


@pytest.fixture(scope="module")
def pipeline():
    pipeline = vlm.load("mini-t5", device="cpu")
    yield pipeline
    pipeline.close()


@pytest.mark.parametrize("ids", [[[5, 6]], ["a"], [None], [5, "a"]], ids=str)
def test_a_list_of_no_ids_costs_its_own_input(pipeline, ids):
    inputs = [{"encoder_input_ids": each} for each in ([5, 6], ids)]
    results = dict(pipeline.as_completed(inputs, on_error="yield", max_new_tokens=2))
    assert isinstance(results[0], vlm.Output)
    assert isinstance(results[1], InputError) and str(results[1]).startswith("the token ids are no numbers")


def test_fields_of_wrong_types_are_told_of_by_who_reads_them_and_not_where_texts_are_read_at_once(builder):
    """An array is neither true nor false."""
    wrong = {"truncate": np.array([1, 2])}, {"suffix": np.array(["a", "b"])}, {"truncate": torch.ones(2)}
    sources = [{"text": "A house.", **fields} for fields in wrong]
    together = builder.together([*sources, "A house.", {"text": "A boat.", "truncate": False, "suffix": ""}])
    assert set(together.context.tokenizer._read) == {"A house.", "A boat."}
    for source in sources:
        with pytest.raises(InputError, match=r"^(truncate is|the suffix must be)"):
            together.build(source, SamplingParams())
