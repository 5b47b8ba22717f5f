"""Options on the command line that nothing comes of: a warning each, as transformers has it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from vlm.config import RuntimeConfig
from vlm.errors import InputError, listed
from vlm.options import flag_of, options_of
from vlm.requests.generation import without_effect
from vlm.requests.sampling_params import SamplingParams
from vlm_app.cli.errors import print_error
from vlm_app.core.load_options import LoadOptions

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline


def warn_of_idle(pipeline: Pipeline, sampling: dict[str, Any], options: LoadOptions, *, as_json: bool = True) -> None:
    """Says which options have no effect, for lack of another one; what the model's own settings say counts, too.
    `as_json`: outputs are written with all that is known of them."""
    own = {name: value for name, value in sampling.items() if name in options_of(SamplingParams)}
    with contextlib.suppress(InputError):  # each input will tell
        for needed, names in without_effect(own, pipeline.engine.generation).items():
            least = f"{getattr(SamplingParams, needed):g}"
            _warn([flag_of(SamplingParams, name) for name in names], f"{flag_of(SamplingParams, needed)} above {least}")
    asked = {"--top-logprobs": own.get("top_logprobs"), "--prompt-logprobs": own.get("prompt_logprobs") is not None}
    if (idle := [flag for flag, given in asked.items() if given]) and not as_json:
        _warn(idle, "--json")
    loading = {name: own.only_with for name, own in options_of(RuntimeConfig).items() if name in options.runtime}
    config = options.runtime_config()
    if idle := [name for name, needed in loading.items() if needed and not getattr(config, needed)]:
        _warn([flag_of(RuntimeConfig, name) for name in idle], "--lora")


def _warn(flags: list[str], needed: str) -> None:
    print_error(f"warning: {listed(flags)} {'has' if len(flags) == 1 else 'have'} no effect without {needed}.")
