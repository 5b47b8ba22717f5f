"""Folders of tiny random models that are asked in words, with a tokenizer of words and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors

from tests.kits.models import tiny

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
WORDS = ["USER:", "ASSISTANT:", *(f"w{i}" for i in range(53))]
VOCABULARY = [*SPECIAL, *WORDS, "<image>"]  # 60; the models' placeholder is 59
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'].upper() + ': ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
MODELS = {
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2),
    "opt": lambda: tiny.opt(seed=2),
    "gpt2": lambda: tiny.gpt2(seed=1),
    "llava": lambda: tiny.llava(seed=3),
    "blip2-opt": lambda: tiny.blip2("opt", seed=1),
    "blip2-t5": lambda: tiny.blip2("t5", seed=7, spread=0.4),
}
DECODERS, ASKED_WITH_IMAGES = ("llama", "opt", "gpt2"), ("llava", "blip2-opt", "blip2-t5")


def saved(name: str, folder: Path, template: str | None = TEMPLATE):
    """The model, which lies in `folder` as Hugging Face has it."""
    model = MODELS[name]()
    model.save_pretrained(folder)
    fast = FastTokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens([*SPECIAL, "<image>"])
    fast.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    fast.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    if template is not None and name in DECODERS:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def ids(text: str) -> list[int]:
    """As the tokenizer gives them, <s> first."""
    return [1, *(VOCABULARY.index(word) for word in text.split())]


def text(tokens: list[int]) -> str:
    return " ".join(VOCABULARY[i] for i in tokens if VOCABULARY[i] not in (*SPECIAL, "<image>"))


def pictures(folder: Path, count: int) -> list[Path]:
    generator = np.random.default_rng(0)
    paths = [folder / f"{i}.png" for i in range(count)]
    for path in paths:
        Image.fromarray(generator.integers(0, 256, (18, 20, 3), dtype=np.uint8)).save(path)
    return paths


@torch.no_grad()
def tuned_continued(model, table: torch.Tensor, tokens: list[int], new: int) -> list[int]:
    """Greedy tokens after `table` [rows, hidden] and these tokens, one full pass over embeddings a token."""
    learned = model.get_input_embeddings()
    rows, found = [*table, *learned(torch.tensor(tokens))], []
    while len(found) < new and (not found or found[-1] != 2):
        logits = model(inputs_embeds=torch.stack(rows)[None], use_cache=False).logits
        found.append(int(logits[0, -1].argmax()))
        rows.append(learned.weight[found[-1]])
    return found
