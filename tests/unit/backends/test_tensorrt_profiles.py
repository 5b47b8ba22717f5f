from __future__ import annotations

import dataclasses

import pytest

from vlm.backends.tensorrt.profiles import DECODE, PREFILL, PlanLimits, graph_profiles
from vlm.config import EngineLimits, RuntimeConfig
from vlm.errors import EngineError

LIMITS = PlanLimits(max_batch_size=8, max_seq_len=1024, max_encoder_input_len=600, max_prefill_tokens=4096)
DECODER = {
    "token_ids": ("batch", "span"),
    "starts": ("batch",),
    "counts": ("batch",),
    "self_k_0": ("batch", 2, 1024, 64),
    "self_v_11": ("batch", 2, 1024, 64),
}


def test_a_decoder_has_a_decode_and_a_prefill_profile():
    profiles = graph_profiles(DECODER, LIMITS)
    assert profiles[DECODE] == {
        "token_ids": ((1, 1), (8, 1), (8, 1)),
        "starts": ((1,), (8,), (8,)),
        "counts": ((1,), (8,), (8,)),
        "self_k_0": ((1, 2, 1024, 64), (8, 2, 1024, 64), (8, 2, 1024, 64)),
        "self_v_11": ((1, 2, 1024, 64), (8, 2, 1024, 64), (8, 2, 1024, 64)),
    }
    assert profiles[PREFILL]["token_ids"] == ((1, 1), (1, 512), (4, 1024))
    assert profiles[PREFILL]["self_k_0"][2] == (4, 2, 1024, 64)
    assert len(profiles) == 2


@pytest.mark.parametrize(
    ("max_seq_len", "max_prefill_tokens", "most"),
    [(128, 4096, (8, 128)), (1024, 1000, (1, 1000)), (3000, 8192, (2, 3000)), (1, 8192, (8, 1))],
)
def test_a_prefill_stays_within_its_tokens(max_seq_len, max_prefill_tokens, most):
    limits = dataclasses.replace(LIMITS, max_seq_len=max_seq_len, max_prefill_tokens=max_prefill_tokens)
    least, typical, got = graph_profiles({"token_ids": (-1, -1), "starts": (-1,)}, limits)[PREFILL]["token_ids"]
    assert got == most and least == (1, 1)
    assert typical[1] <= got[1]


def test_prompt_tables_of_whole_prompts():
    decode, prefill = graph_profiles(DECODER | {"prompt_table": ("rows", 256)}, LIMITS)
    assert prefill["prompt_table"] == ((1, 256), (512, 256), (8 * 1024, 256))
    assert decode["prompt_table"] == ((1, 256), (8, 256), (8, 256))  # a row a sequence


def test_caches_of_an_encoder_decoder():
    cross = {"cross_lengths": ("batch",), "cross_k_0": ("batch", 4, 600, 64), "cross_v_0": ("batch", 4, "encoder", 64)}
    decode, prefill = graph_profiles(DECODER | cross, LIMITS)
    assert decode["cross_k_0"] == decode["cross_v_0"] == ((1, 4, 600, 64), (8, 4, 600, 64), (8, 4, 600, 64))
    assert prefill["cross_lengths"] == ((1,), (1,), (4,))


def test_encoders_have_one_profile():
    text = {"token_ids": ("batch", "span"), "lengths": ("batch",), "prompt_table": ("rows", 32)}
    (profile,) = graph_profiles(text, dataclasses.replace(LIMITS, max_encoder_tokens=1300))
    assert profile["token_ids"] == ((1, 1), (1, 512), (2, 600))
    assert profile["lengths"] == ((1,), (1,), (2,))
    (cross,) = graph_profiles({"hidden": ("batch", "span", 96)}, LIMITS)
    assert cross["hidden"] == ((1, 1, 96), (1, 512, 96), (8, 600, 96))
    (visual,) = graph_profiles({"pixel_values": ("batch", 3, 896, 672)}, LIMITS)
    assert visual["pixel_values"] == ((1, 3, 896, 672), (8, 3, 896, 672), (8, 3, 896, 672))


def test_what_is_static_needs_no_profile():
    assert graph_profiles({"pixel_values": (1, 3, 8, 8)}, LIMITS) == ({},)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"pixel_values": ("batch", 3, "height", 8)}, r"pixel_values is dynamic in axis 2 \(height\), which no limit"),
        ({"bias": ("heads",)}, "bias is dynamic in axis 0"),
        ({**DECODER, "self_k_0": ("batch", 2, 512, 64)}, "self_k_0 has 512 in axis 2, built for are 1024 to 1024"),
        ({"hidden": ("batch", 700, 96)}, "hidden has 700 in axis 1, built for are 1 to 600"),
    ],
)
def test_what_no_limit_fits(inputs, reason):
    with pytest.raises(EngineError, match=reason):
        graph_profiles(inputs, LIMITS)


def test_limits_come_from_the_build_and_the_runtime():
    limits = PlanLimits.from_engine(EngineLimits(max_batch_size=3, max_seq_len=20))
    assert (limits.max_batch_size, limits.max_seq_len, limits.max_encoder_input_len) == (3, 20, 0)
    assert limits.max_prefill_tokens == RuntimeConfig().max_prefill_tokens
