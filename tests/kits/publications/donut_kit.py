"""Processors of Donut's publications in small."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import DonutImageProcessor, DonutProcessor, PreTrainedTokenizerFast

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
PRETRAINING = ("<sep/>", "<s_iitcdip>", "<s_synthdog>")
DOCVQA = ("<s_docvqa>", "<s_question>", "</s_question>", "<s_answer>", "</s_answer>", "<yes/>", "<no/>")
CORD = ("<s_cord-v2>", "<s_menu>", "</s_menu>", "<s_nm>", "</s_nm>", "<s_price>", "</s_price>")
RVLCDIP = ("<s_rvlcdip>", "<s_class>", "</s_class>", "<letter/>", "<memo/>")
WORDS = ("▁what", "▁is", "▁the", "▁date", "▁total", "▁5", "▁coffee", "▁tea", "▁")
FORMS = {"docvqa": DOCVQA, "cord-v2": CORD, "rvlcdip": RVLCDIP, "base": (), "several": (*DOCVQA, *CORD)}


def write_processor(folder: Path, tokens: tuple[str, ...]) -> DonutProcessor:
    """Saves the processor of a publication whose tokenizer has these tokens, structure as special ones."""
    vocabulary = [(token, 0.0) for token in SPECIAL] + [(word, -float(i)) for i, word in enumerate(WORDS, 1)]
    fast = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast.add_special_tokens(list(SPECIAL))
    fast.add_tokens([AddedToken(token, special=False) for token in PRETRAINING])
    fast.add_special_tokens(list(tokens))
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, **names)
    images = DonutImageProcessor(size={"height": 64, "width": 48}, do_align_long_axis=False)
    processor = DonutProcessor(images, tokenizer)
    processor.save_pretrained(folder)
    return processor
