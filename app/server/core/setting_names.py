"""What the protocols call the settings of a request, in its fields and in the errors about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vlm.errors import InputError, VlmError
from vlm.options import options_of
from vlm.requests.sampling_params import SamplingParams
from vlm_app.core.renamed import renamed, settings_of, with_names

# settings of tokens that KServe's protocol has tensors of its own for; of end_id there is one
_KSERVE_TOKENS = {"stop_token_ids": "end_id", "stop_words_ids": "stop_words_list", "bad_words_ids": "bad_words_list"}
# fields of OpenAI's bodies that are no settings of tokens
_OPENAI_FIELDS = {name: name for name in ("task", "question", "continue_final_message", "dimensions", "echo")} | {
    "truncate": "truncate_prompt_tokens"
}


def in_openai(completions: bool) -> dict[str, str]:
    """Returns the names in bodies of the settings that a route takes, /v1/completions or /v1/chat/completions."""
    offers = ((name, own.openai) for name, own in options_of(SamplingParams).items() if own.openai is not None)
    return {name: (completions and offer.completions) or offer.name or name for name, offer in offers}


def in_kserve() -> dict[str, str]:
    """Returns the names of the settings that KServe's protocol takes, as tensors or as parameters."""
    offers = ((name, own.kserve) for name, own in options_of(SamplingParams).items() if own.kserve is not None)
    return {name: offer.name or name for name, offer in offers}


def param_of(error: Exception, path: str) -> str | None:
    """Returns what the protocol of a route calls the setting that an error is about."""
    settings = settings_of(error)
    return _names_at(path).get(settings[0]) if settings else None


def for_clients(error: VlmError, path: str) -> str:
    """Returns an error's sentence for clients, in which settings are called as the protocol of a route does, or as the
    request did."""
    return with_names(renamed(getattr(error, "for_clients", str(error)), error, _names_at(path)), error.sent_names)


@contextmanager
def calling(sent_names: Mapping[str, str]) -> Iterator[None]:
    """Has what a request calls its settings told with each error about it."""
    try:
        yield
    except VlmError as error:
        error.sent_names = sent_names
        raise


@contextmanager
def about_input() -> Iterator[None]:
    """Has each error that names no setting told as one about the request's input."""
    try:
        yield
    except InputError as error:
        error.is_about_input = True
        raise


def _names_at(path: str) -> Mapping[str, str]:
    if path.startswith("/v2"):
        return in_kserve() | _KSERVE_TOKENS
    return in_openai(completions=path.rstrip("/").endswith("/v1/completions")) | _OPENAI_FIELDS
