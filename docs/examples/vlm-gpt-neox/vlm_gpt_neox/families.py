"""Pythia, which goes on with a text, and Dolly, which was trained from it to follow instructions."""

from __future__ import annotations

from typing import Any

from vlm.registry.spec import ChatFormat, FamilySpec, Role

# Dolly's, as its pipeline writes it: instructions, responses and their ends by headings
INTRO = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
END = "### End"
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ " + repr(INTRO) + " }}{% endif %}"
    "{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '\n\n### Instruction:\n' + m['content'] }}"
    "{% else %}{{ '\n\n### Response:\n' + m['content'] + '\n\n### End' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n\n### Response:\n' }}{% endif %}"
)


def response_alone(text: str) -> str:
    """Returns what the model answered, without the heading at its end and what it made up after that."""
    return text.partition(END)[0].strip()


def _is_neox(config: dict[str, Any]) -> bool:
    return config.get("model_type") == "gpt_neox"


def _is_dolly(config: dict[str, Any]) -> bool:
    """Says whether the folder names Dolly's own pipeline."""
    return _is_neox(config) and "instruct_pipeline" in str(config.get("custom_pipelines"))


def _pythia(hidden: int, layers: int, heads: int, **fields: Any) -> dict[str, Any]:
    """The published shapes of EleutherAI/pythia-*."""
    return {
        "model_type": "gpt_neox",
        "vocab_size": 50304,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2048,
        "rotary_pct": 0.25,
        "bos_token_id": 0,
        "eos_token_id": 0,
    } | fields


ROLES = {"decoder": Role("gpt-neox")}

PYTHIA = FamilySpec(
    name="pythia",
    summary="Text: GPT-NeoX and Pythia decoders (EleutherAI/*)",
    roles=ROLES,
    matches=_is_neox,
    inputs=("text",),
    chat_format=ChatFormat(),
    architectures={"pythia-160m": lambda: _pythia(768, 12, 12), "pythia-1.4b": lambda: _pythia(2048, 24, 16)},
)

DOLLY = FamilySpec(
    name="dolly",
    summary="Text: Dolly, which follows instructions (databricks/dolly-v2-*)",
    roles=ROLES,
    matches=_is_dolly,
    inputs=("text",),
    chat_format=ChatFormat(template=TEMPLATE),
    postprocess=response_alone,
    architectures={"dolly-v2-3b": lambda: _pythia(2560, 32, 32, vocab_size=50280)},
)
