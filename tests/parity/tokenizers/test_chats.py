"""Conversations of models of texts alone: the ids that Hugging Face's tokenizers make of them, and the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import vlm
from tests.kits.models import tiny

WORDS = ["<unk>", "<s>", "</s>", "user", "assistant", ":", "what", "is", "this", "?", "a", "cat", "and", "."]
NEW = 6
# of a tokenizer that puts <s> before a text, and perhaps </s> behind it
BEGINS = {"a text begins": "<s> $A", "begins and ends": "<s> $A </s>", "neither": "$A"}
TEMPLATES = {
    # as TinyLlama's chats and Zephyr have it: nothing says where a conversation begins
    "no beginning": "{% for m in messages %}{{ m.role + ' : ' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant :' }}{% endif %}",
    "a beginning": "{{ bos_token }}{% for m in messages %}{{ m.role + ' : ' + m.content + '.' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant :' }}{% endif %}",
}
TURNS = [{"role": "user", "content": "what is this ?"}, {"role": "assistant", "content": "a cat ."},
         {"role": "user", "content": "and this ?"}]  # fmt: skip


def words(folder, begins: str, template: str | None) -> Any:
    """Writes a model and its tokenizer of words, and returns the latter."""
    fast = FastTokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens(WORDS[:3])
    fast.post_processor = processors.TemplateProcessing(begins, None, [("<s>", 1), ("</s>", 2)])
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, **names)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer


def compare(model: Any, given: dict, ids: list[int], pipe: vlm.Pipeline) -> None:
    """Compares the prompt's ids, and the tokens and log-probabilities that are chosen after them."""
    assert list(pipe.request(given).decoder_prompt_token_ids) == ids
    out = pipe.generate(given, max_new_tokens=NEW, ignore_eos=True)
    with torch.no_grad():
        row = torch.tensor(ids)
        for _ in range(NEW):
            row = torch.cat([row, model(row[None]).logits[0, -1:].argmax(-1)])
        exact = model(row[None, :-1]).logits[0, len(ids) - 1 :].log_softmax(-1)
    assert out.token_ids == row[len(ids) :].tolist()
    chosen = exact.gather(1, row[len(ids) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(out.logprobs), chosen, atol=1e-4, rtol=0)


@pytest.mark.parametrize("begins", BEGINS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_writes_all_that_is_read(template, begins, tmp_path):
    """Conversations, prompts and messages that are gone on with get no special tokens beside those of the template."""
    model: Any = tiny.llama(seed=1)
    model.save_pretrained(tmp_path)
    tokenizer = words(tmp_path, BEGINS[begins], TEMPLATES[template])
    pipe = vlm.load(tmp_path, device="cpu", dtype="float32", cache_dir=tmp_path / "cache", max_seq_len=64)
    ask = {"tokenize": True, "return_dict": False, "add_generation_prompt": True}
    compare(model, {"messages": TURNS}, tokenizer.apply_chat_template(TURNS, **ask), pipe)
    compare(model, {"prompt": TURNS[0]["content"]}, tokenizer.apply_chat_template(TURNS[:1], **ask), pipe)
    ask |= {"add_generation_prompt": False, "continue_final_message": True}
    given = {"messages": TURNS[:2], "continue_final_message": True}
    compare(model, given, tokenizer.apply_chat_template(TURNS[:2], **ask), pipe)


@pytest.mark.parametrize("begins", BEGINS)
@pytest.mark.parametrize("template", [None, TEMPLATES["no beginning"]])
def test_a_text_as_it_is_has_the_tokenizers_special_tokens(template, begins, tmp_path):
    model: Any = tiny.llama(seed=1)
    model.save_pretrained(tmp_path)
    tokenizer = words(tmp_path, BEGINS[begins], template)
    pipe = vlm.load(tmp_path, device="cpu", dtype="float32", cache_dir=tmp_path / "cache", max_seq_len=64)
    text = "what is a cat ?"
    for name in ("raw_prompt", "prompt") if template is None else ("raw_prompt",):
        compare(model, {name: text}, tokenizer(text)["input_ids"], pipe)


def test_of_templates_by_name_the_default_is_read(tmp_path):
    tiny.llama(seed=1).save_pretrained(tmp_path)
    tokenizer = words(tmp_path, BEGINS["neither"], TEMPLATES["no beginning"])
    named = tmp_path / "additional_chat_templates"
    named.mkdir()
    (tmp_path / "chat_template.jinja").rename(named / "default.jinja")
    (named / "tool_use.jinja").write_text("{{ bos_token }}")
    theirs = type(tokenizer).from_pretrained(tmp_path)
    ids = theirs.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)
    pipe = vlm.load(tmp_path, device="cpu", dtype="float32", cache_dir=tmp_path / "cache", max_seq_len=64)
    assert list(pipe.request({"messages": TURNS}).decoder_prompt_token_ids) == ids
