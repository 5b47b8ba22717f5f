"""The chat format of Vicuna, on which LLaVA and VILA were built."""

from __future__ import annotations

# a conversation in words
VICUNA = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'].upper() + ': ' }}{% endif %}"
    "{% for part in m['content'] %}{{ '<image>\n' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{{ eos_token if m['role'] == 'assistant' else ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and"
    " polite answers to the user's questions. "
)


def vicuna(system: str) -> str:
    """Returns Vicuna's template with a sentence that begins each conversation."""
    return f"{{{{ {system!r} }}}}{VICUNA}"
