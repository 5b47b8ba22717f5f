"""SamplingParams as callers make them: the forms that the options of calls take, and mistakes in a sentence."""

from __future__ import annotations

import pytest

from vlm import InputError, SamplingParams

FORMS = [
    ({"stop": "end"}, {"stop": ("end",)}),
    ({"stop": ["a", "b"], "stop_token_ids": [3]}, {"stop": ("a", "b"), "stop_token_ids": (3,)}),
    ({"logit_bias": {7: -100, "9": 2}}, {"logit_bias": ((7, -100.0), (9, 2.0))}),
    ({"sequence_bias": {(3, 4): 2}}, {"sequence_bias": (((3, 4), 2.0),)}),
    ({"bad_words_ids": [[3], [4, 5]]}, {"bad_words_ids": ((3,), (4, 5))}),
    ({"forced_eos_token_id": [2]}, {"forced_eos_token_id": 2}),
]


@pytest.mark.parametrize(("given", "fields"), FORMS)
def test_forms_of_a_value(given, fields):
    params = SamplingParams(**given)
    assert {name: getattr(params, name) for name in fields} == fields
    assert params == SamplingParams(**fields) and hash(params) == hash(SamplingParams(**fields))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5; it must be a whole number"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; it must be a list of whole numbers"),
        ({"logit_bias": 5}, "logit_bias must map token ids"),
    ],
)
def test_values_of_a_wrong_type(given, said):
    with pytest.raises(InputError, match=said):
        SamplingParams(**given)
