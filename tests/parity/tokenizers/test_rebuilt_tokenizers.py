"""A tokenizer.json of which Hugging Face's class takes the vocabulary alone: texts are split and joined as by that
class, whatever the file says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer

from vlm.convert.tokenizer_files import completed_tokenizer
from vlm.processing.text.tokenization import Tokenizer

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [*"▁abcdefghijklmnopqrstuvwxyz", "▁▁", "▁t", "he", "▁the"]
MERGES = [("▁", "▁"), ("▁", "t"), ("h", "e"), ("▁t", "he")]
NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}
TEXTS = ["the cat", "  the", " ", "", "x</s>the", "x </s> the", "<s>the</s><s>the", "▁the ▁", "é\n\0😀", "the  the "]
SETTINGS = (
    {},
    {"legacy": True},
    {"legacy": False},
    {"add_prefix_space": False},
    {"tokenizer_class": "LlamaTokenizerFast"},
)


def as_older_releases_wrote(folder: Path, model_type: str, settings: dict) -> None:
    """Writes a LLaMA's tokenizer whose texts begin with a blank behind each special token, as SentencePiece has it."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *BYTES, *PIECES])}
    fast = FastTokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    fast.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMES | settings))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("model_type", ["llama", "llava"])  # of the other one Hugging Face takes the file as it is
def test_texts_are_hugging_faces(model_type, settings, tmp_path):
    as_older_releases_wrote(tmp_path, model_type, settings)
    file, theirs = tmp_path / "tokenizer.json", AutoTokenizer.from_pretrained(tmp_path)
    if (content := completed_tokenizer(file, (), tmp_path)) is not None:
        file.write_text(content)
    assert (ours := Tokenizer.from_dir(tmp_path)) is not None
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode_source(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("changes", [{"model_type": "llava_llama"}, {}, {"model_type": ["llama"]}])
def test_what_hugging_face_does_not_read_keeps_its_file(changes, tmp_path):
    as_older_releases_wrote(tmp_path, "llama", {})
    (tmp_path / "config.json").write_text(json.dumps(changes))
    assert completed_tokenizer(tmp_path / "tokenizer.json", (), tmp_path) is None
