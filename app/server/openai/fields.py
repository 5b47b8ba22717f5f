"""Fields of OpenAI's and vLLM's requests that are not done here, in one table: what of them is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import PydanticCustomError

from vlm.errors import listed, meant
from vlm_app.core.names import one_line
from vlm_app.server.core.errors import MAX_NAME

# they say nothing about the answer, whatever they hold
IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options"
    " verbosity reasoning_effort parallel_tool_calls"
    # vLLM's: of models that reason, of slow tokenizers, of how a stream is cut, of other routes
    " include_reasoning thinking_token_budget spaces_between_special_tokens stream_interval session_id"
    " return_token_offsets return_mm_kwargs".split()
)
# they would change the answer -> the values that ask for nothing, besides null, "", [] and {}
REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": (), "tool_choice": ("none", "auto"), "functions": (), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "audio": (), "prediction": (),
    "web_search_options": (), "suffix": (), "moderation": (),
    # vLLM's
    "structured_outputs": (), "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "guided_decoding_backend": (), "guided_whitespace_pattern": (), "structural_tag": (),
    "logprob_token_ids": (), "return_token_ids": (False,), "return_prompt_text": (False,),
    "detokenize": (True,), "chat_template": (), "chat_template_kwargs": (), "documents": (),
    "mm_processor_kwargs": (), "media_io_kwargs": (), "prompt_embeds": (), "truncation_side": (),
    "logits_processors": (), "repetition_detection": (), "watermarking": (False,), "priority": (0,),
    "cache_salt": (), "kv_transfer_params": (), "ec_transfer_params": (), "vllm_xargs": (),
    "routed_experts_prompt_start": (0,),
}  # fmt: skip
# of these what is to be had otherwise: an answer is text, of whatever form it is asked for in words
FORMS = frozenset(
    "response_format structured_outputs structural_tag guided_json guided_regex guided_choice guided_grammar tools"
    " tool_choice functions function_call".split()
)
NOTHING = (None, "", [], {})
# of vllm_xargs: a setting of ours, and what tells nothing (mineru-vl-utils sends both)
XARGS = ("no_repeat_ngram_size", "debug")


def with_xargs(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a body with the settings of its vllm_xargs among its fields; others' stay there, to be refused."""
    xargs = values.get("vllm_xargs")
    if not isinstance(xargs, dict) or not xargs.keys() <= set(XARGS):
        return values
    rest = {name: value for name, value in values.items() if name != "vllm_xargs"}
    return {XARGS[0]: xargs.get(XARGS[0])} | rest


def accepted(values: Mapping[str, Any], schema: Mapping[str, Any], neutral: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a body that its schema reads (`schema`): null is as if a field were left out.

    `neutral`: values of refused fields that mean nothing to this route. Raises PydanticCustomError, which names the
    fields, for all that would be ignored.
    """
    others = {name: value for name, value in values.items() if name not in schema and name not in IGNORED}
    allowed = {name: (*NOTHING, *words) for name, words in {**REFUSED, **neutral}.items()}
    refused = {name: others[name] for name in others if name in allowed and not _is_one_of(others[name], allowed[name])}
    unknown = [name for name, value in others.items() if name not in allowed and value is not None]
    if refused or unknown:
        raise _refusal_of(refused, unknown, schema)
    return {name: value for name, value in values.items() if name in schema and value is not None}


def no_others(field: str, values: dict[str, Any], schema: Iterable[str]) -> dict[str, Any]:
    """Returns a field's own fields. Raises PydanticCustomError for one that is not in its schema and not null."""
    known = [*schema]
    name = next((name for name, value in values.items() if name not in known and value is not None), None)
    if name is None:
        return values
    told = f"'{one_line(name, MAX_NAME)}', which is none of its fields{meant(name, known)}"
    raise refusal(field, f"{field} has {told}; leave it out.")


def _refusal_of(refused: Mapping[str, Any], unknown: Sequence[str], schema: Iterable[str]) -> PydanticCustomError:
    """Returns the refusal of all fields that are not done here, or not known, with what to do in their place."""
    names = [one_line(name, MAX_NAME) for name in unknown]
    done = listed(f"{name}{_shown(value)}" for name, value in refused.items())
    known = listed(f"'{name}'" for name in names)
    clauses = [f"{done} {'is' if len(refused) == 1 else 'are'} not supported"] if refused else []
    if len(names) == 1:
        clauses.append(f"{known} is no field of this route{meant(unknown[0], schema)}")
    elif names:
        clauses.append(f"{known} are no fields of this route")
    step = "leave it out" if len(refused) + len(unknown) == 1 else "leave them out"
    advice = ", and say in the text which form the answer is to have" if FORMS & refused.keys() else ""
    return refusal([*refused, *names][0], f"{', '.join(clauses)}; {step}{advice}.")


def refusal(name: str, sentence: str) -> PydanticCustomError:
    """Returns what a validator raises, with the field that clients are told of."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence, "param": name})


def _is_one_of(value: Any, alternatives: tuple[Any, ...]) -> bool:
    """Says whether a value is one of these; True is no 1 and 0 is not False here."""
    return any(type(value) is type(each) and value == each for each in alternatives)


def _shown(value: Any) -> str:
    """Names a short value."""
    return f" {value!r}" if isinstance(value, str | int | float) and len(str(value)) <= 20 else ""
