"""A model's configurations, typed by role."""

from __future__ import annotations

import pytest

from vlm.config import EngineLimits, ModelConfig
from vlm.errors import ConfigError
from vlm.registry.role_configs import RoleConfigs

DECODER, ENCODER = ModelConfig(9, 8, 1, 1, 64, 0, 2, 1, 0), ModelConfig(5, 8, 1, 1, 32, 0, 2, 1, 0)


def test_it_iterates_over_the_roles_that_there_are():
    configs = RoleConfigs.from_roles({"decoder": DECODER, "encoder": ENCODER})
    assert [*configs] == ["encoder", "decoder"] and "visual" not in configs and configs["decoder"] is DECODER
    with pytest.raises(KeyError):
        configs["visual"]
    with pytest.raises(ConfigError, match="roles are visual, encoder, decoder, not tail"):
        RoleConfigs.from_roles({"tail": DECODER})


def test_who_reads_and_who_writes():
    assert RoleConfigs(decoder=DECODER).reader is RoleConfigs(decoder=DECODER).writer is DECODER
    both = RoleConfigs(encoder=ENCODER, decoder=DECODER)
    assert both.reader is ENCODER and both.writer is DECODER and RoleConfigs(encoder=ENCODER).writer is ENCODER


def test_limits_are_numbers_whatever_the_model_lacks():
    stored = {"max_batch_size": 4, "max_seq_len": None, "max_encoder_input_len": 16}
    limits = EngineLimits.from_manifest(stored)
    assert limits == EngineLimits(4, 0, 16) and limits.to_manifest() == stored and limits.max_input_len == 16
    assert limits.within(max_batch_size=2, max_seq_len=9, max_encoder_input_len=None) == EngineLimits(2, 0, 16)
    assert limits.within(max_batch_size=8) == limits
