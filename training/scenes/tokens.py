"""A byte-level BPE made from the questions themselves; capitals stay single, so that signs are spelt."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from training.scenes import scene as scenes
from training.scenes.questions import ask

VOCABULARY = 512
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>")
PAD, BEGIN, END, _, IMAGE = range(len(SPECIAL))
FRAMES = "USER: ASSISTANT: Question: Answer: \n"
LINES = 4000  # scenes whose questions are looked at


def build(*, ends: str) -> PreTrainedTokenizerFast:
    """`ends`: "<s> $A" for a decoder, "$A </s>" for T5"""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # as LLaMA's: what is said after "ASSISTANT:" begins with its first word, and fits into the template again
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet,
                                  show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator(_lines(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(ends, None, [("<s>", BEGIN), ("</s>", END)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _lines():
    yield from [FRAMES] * 20
    for seed in range(LINES):
        for kind, question, answer in ask(scenes.make(seed), 4, seed):
            yield question if kind == "read" else f"{question} {answer}"
