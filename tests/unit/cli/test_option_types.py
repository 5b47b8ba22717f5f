"""Settings of a request of every type but the right one: one sentence says what was got and what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from llm_engines.models.llama_config import LlamaConfig, parse
from vlm.artifacts.hugging_face.generation_config import generation_defaults, standing_alone
from vlm.errors import ConfigError, InputError
from vlm.requests.generation import OTHER_NAMES, model_defaults, sampling_params
from vlm.requests.sampling_params import SamplingParams

VALUES = (
    -1, 0, 1, 3, 10**12, 10**400, float("inf"), float("nan"), 0.5, 2.5, True, np.int64(3), object(), "x", "", b"x",
    [], [1], [None], ["a", 2], [[1]], [["a"]], [10**12], (1, 2), [[[1], 2.0]], [[[1], "x"]],
    {}, {"a": 1}, {1: "x"}, {1: 2},
)  # fmt: skip


@pytest.mark.parametrize("name", [*SamplingParams.__dataclass_fields__, *OTHER_NAMES])
def test_a_setting_is_taken_or_refused_in_a_sentence(name):
    taken = 0
    for value in VALUES:
        try:
            found = sampling_params({name: value}, {}, loop_detection=False)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            hash(found)
            taken += 1
    assert 0 < taken < len(VALUES) or name == "do_sample"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": "x"}, "temperature is 'x'; it must be a number."),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5; it must be a whole number."),
        ({"num_beams": True}, "num_beams is True; it must be a whole number."),
        ({"skip_special_tokens": "no"}, "skip_special_tokens is 'no'; it must be true or false."),
        ({"early_stopping": 3}, "early_stopping is 3; it must be true or false or a string."),
        ({"stop": 5}, "stop is 5; it must be a list of strings."),
        ({"stop_words_ids": [1]}, "stop_words_ids is (1,); it must be a list of lists."),
        ({"exponential_decay_length_penalty": "x"}, "it must be a list of two numbers."),
        ({"forced_eos_token_id": "x"}, "it must be a whole number or a list of whole numbers."),
        ({"eos_token_id": "x"}, "it must be a list of whole numbers."),
        ({"suppress_tokens": [10**12]}, "the token id 1000000000000 is that of no vocabulary; leave it out."),
    ],
)
def test_what_is_allowed(settings, says):
    with pytest.raises(InputError) as caught:
        sampling_params(settings, {}, loop_detection=False)
    assert str(caught.value).endswith(says)


def test_none_is_what_the_model_says():
    assert sampling_params({"num_beams": None, "stop": None}, {"num_beams": 3}, loop_detection=False).num_beams == 3


def test_a_models_own_settings_are_named_as_such():
    with pytest.raises(InputError, match=r"^the model's own generation settings cannot be used: top_k is 'many'; "):
        sampling_params({}, {"do_sample": True, "top_k": "many"}, loop_detection=False)


@pytest.mark.parametrize("own", [{"temperature": -3}, {"top_p": 7}])
def test_what_a_model_draws_with_is_its_own_setting_unless_a_request_says_it(own):
    [(name, value)], generation = own.items(), {"do_sample": True, **own}
    with pytest.raises(InputError, match=rf"^the model's own generation settings cannot be used: {name} is {value}"):
        sampling_params({}, generation, loop_detection=False)
    with pytest.raises(InputError, match=f"^{name} is {value}"):
        sampling_params(own, generation, loop_detection=False)
    assert sampling_params({"do_sample": False}, generation, loop_detection=False).temperature == 0


@pytest.mark.parametrize(("key", "value"), [("max_new_tokens", 0), ("max_length", -1), ("num_beams", 0)])
def test_a_models_own_settings_that_nothing_can_come_of(key, value):
    """A request would wait for ever for no tokens."""
    with pytest.raises(InputError, match=rf"settings cannot be used: {key} is {value}; it must be at least 1\.$"):
        model_defaults({key: value})


@pytest.mark.parametrize("value", [{"a": 1}, "2", [2, "3"], 1.5, True, -5, 10**12])
@pytest.mark.parametrize("name", ["eos_token_id", "decoder_start_token_id", "forced_bos_token_id"])
def test_tokens_of_a_model_that_are_none(name, value):
    with pytest.raises(
        ConfigError, match=f"^the configuration's {name} is .* it must be a token's id or a list of them"
    ):
        generation_defaults({}, {name: value})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"activation": [1]}, "activation is (1,); it must be a string"),
        ({"norm_eps": {"a": 1}}, "norm_eps is {'a': 1}; it must be a number"),
        ({"norm_eps": float("inf")}, "norm_eps is inf; it must be a number"),
        ({"num_layers": 2.0}, "num_layers is 2.0; it must be a whole number"),
        ({"rotary": None}, "rotary is None; it must be an object"),
        ({"whole_layers": 3}, "whole_layers is 3; it must be a list of whole numbers"),
        ({"reach": "far"}, "reach is 'far'; it must be a whole number"),
    ],
)
def test_a_configuration_of_ours_with_a_value_of_another_type(change, says):
    values = parse({"model_type": "mistral"}).to_dict()
    assert LlamaConfig.from_dict(values) == parse({"model_type": "mistral"})
    with pytest.raises(ConfigError) as caught:
        LlamaConfig.from_dict(values | change)
    assert str(caught.value) == f"LlamaConfig cannot have these values: {says}."


def test_an_output_that_begins_with_one_of_no_tokens():
    assert standing_alone({"decoder_start_token_id": []})["decoder_start_token_id"] is None
