"""Sentences about settings in their reader's words."""

from __future__ import annotations

import pytest

from vlm.errors import ConfigError, EngineError, InputError
from vlm_app.core import renamed


@pytest.mark.parametrize(("error", "says"), [
    (InputError("top_p is 3; it must lie in (0, 1].", settings=("top_p",)), "--top-p is 3; it must lie in (0, 1]."),
    (ConfigError("stop_at is 3, of stop.", settings=("stop",)), "stop_at is 3, of --stop."),
    (InputError("--stop is x; it must be y.", settings=("stop",)), "--stop is x; it must be y."),
    (InputError("a top_p of 3 is no setting's."), "a top_p of 3 is no setting's."),
    (EngineError("device is 3.", settings=("device",)), "device is 3."),  # the verb has no such option
])  # fmt: skip
def test_settings_are_called_as_the_options_of_the_verb(error, says):
    before = renamed.flags.set({"top_p": "--top-p", "stop": "--stop"})
    try:
        assert renamed.with_flags(error) == says
    finally:
        renamed.flags.reset(before)
