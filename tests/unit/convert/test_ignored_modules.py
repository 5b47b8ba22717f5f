"""Patterns of the layers that a compressed-tensors folder keeps dense."""

from __future__ import annotations

import re

import pytest

from vlm.convert.quantized.ignored import ignore_patterns

LANGUAGE = [f"language_model.model.layers.{i}.self_attn.{name}" for i in range(12) for name in ("q_proj", "k_proj")]


def matched(patterns: list[str], name: str) -> bool:
    """Says whether a module is ignored, as compressed-tensors does."""
    return any(re.match(p[3:], name) if p.startswith("re:") else p == name for p in patterns)


@pytest.mark.parametrize("name", ["vision_tower.encoder.layers.0.self_attn.q_proj", "language_model.lm_head",
                                  "model.vision_tower.encoder.layers.1.self_attn.q_proj", "lm_head",
                                  "vision_tower.layers.0.mlp.fc1", "decoder.output_projection"])  # fmt: skip
def test_modules_are_known_by_the_names_of_checkpoints_and_of_transformers(name):
    dense = ["vision_tower.encoder.layers.0.self_attn.q_proj", "vision_tower.encoder.layers.0.mlp.fc1"]
    patterns = ignore_patterns([*dense, "language_model.lm_head"], LANGUAGE)
    assert len(patterns) == 3 and matched(patterns, name)
    assert not any(matched(patterns, each) for each in LANGUAGE)
    assert not any(matched(patterns, each.replace("language_model.model", "model.language_model")) for each in LANGUAGE)


def test_one_layer_is_told_from_those_like_it():
    dense = "language_model.model.layers.1.self_attn.q_proj"
    kept = [*(set(LANGUAGE) - {dense}), "vision_tower.layers.1.self_attn.q_proj"]
    patterns = ignore_patterns([dense], kept)
    assert matched(patterns, dense) and matched(patterns, "model.language_model.layers.1.self_attn.q_proj")
    assert not any(matched(patterns, f"{beginning}{each}") for each in kept for beginning in ("", "model."))


def test_a_number_alone_is_no_name():
    kept = [f"layers.{i}.{name}" for i in (0, 1) for name in ("fc1", "fc2")]
    patterns = ignore_patterns(["layers.2.fc1", "layers.2.fc2"], kept)
    assert matched(patterns, "layers.2.fc1") and not matched(patterns, "connector.2")


def test_a_quantized_head_is_not_ignored_by_any_of_its_names():
    patterns = ignore_patterns(["model.embed_tokens"], ["language_model.lm_head", *LANGUAGE])
    assert not matched(patterns, "lm_head") and matched(patterns, "embed_tokens")


def test_a_name_that_no_pattern_tells_apart_stands_as_it_is():
    assert "proj" in ignore_patterns(["proj"], ["tower.proj"])
