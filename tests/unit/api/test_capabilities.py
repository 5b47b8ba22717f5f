"""What a loaded model says of itself."""

from __future__ import annotations

import pytest

import vlm
from vlm.api.capabilities import Capabilities


def capabilities(model: str, **options) -> Capabilities:
    return vlm.load(model, device="cpu", max_batch_size=3, **options).capabilities


def test_a_model_of_texts():
    found = capabilities("mini-t5")
    assert found.takes_text and not found.takes_images and not found.takes_prompt and not found.supports_chat
    assert found.has_text_encoder and found.id_field == "encoder_input_ids" and found.has_tokenizer
    assert found.generates and found.max_batch_size == 3 and found.max_prompt_tokens == found.max_encoder_input_len
    assert len(found.eos_token_ids) == 1


def test_a_model_of_pages():
    found = capabilities("mini-nougat")
    assert found.takes_images and not found.takes_text and not found.takes_prompt and not found.has_text_encoder


@pytest.mark.parametrize("model", ["mini-llava"])
def test_a_chat_model(model):
    found = capabilities(model)
    assert found.takes_images and found.takes_prompt and found.supports_chat and not found.has_text_encoder
    assert found.id_field == "decoder_prompt_token_ids" and found.max_prompt_tokens == found.max_seq_len


def test_an_encoder_alone():
    found = capabilities("mini-t5", encoder_only=True)
    assert not found.generates and found.has_text_encoder and found.eos_token_ids == ()
