"""The tokenizer: a small BPE vocabulary over words, with T5's special tokens.

Digits stand alone and German number words come apart where they are put together, so that a number is always read in
the same pieces. All printable ASCII and German's letters are in; what else there is becomes <unk>.
"""

from __future__ import annotations

import random
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from training.t5 import tasks

PAD, EOS, UNK = range(3)
SPECIAL = ("<pad>", "</s>", "<unk>")
ALPHABET = "▁\n" + "".join(map(chr, range(33, 127))) + "äöüÄÖÜß€éèàçñ–—„“”‚‘’°§"
VOCAB_SIZE = 2048
NUMBER_PARTS = r"hundert|tausend|und(?=(zwan|drei|vier|fünf|sech|sieb|acht|neun)(zig|ßig))|\n|\d|[.,:;!?()/€$]"


def untrained(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace("▁", "always"), pre_tokenizers.Split(Regex(NUMBER_PARTS), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    return tokenizer


def build(examples: int = 60_000, seed: int = 0) -> Tokenizer:
    """Learned on training text; the same seed gives the same tokenizer."""
    rng = random.Random(seed)
    tokenizer = untrained(models.BPE(unk_token="<unk>"))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=list(SPECIAL), initial_alphabet=list(ALPHABET), show_progress=False,
    )  # fmt: skip
    lines = [text for e in islice(tasks.training(rng), examples) for text in (e.source, e.target)]
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", EOS)]
    )
    return tokenizer
