"""Output heads that a folder stores or not, beside what its configuration says of them."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from tests.kits.models import tiny
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError

DECODERS = {
    "llama": lambda **tie: tiny.llama(**tie),
    "qwen3": lambda **tie: tiny.llama(kind="qwen3", **tie),
    "opt": tiny.opt,
    "gpt2": tiny.gpt2,
    "gpt_bigcode": lambda **tie: tiny.gpt2(multi_query=True, **tie),
    "pix2struct": tiny.pix2struct,
    "llava": tiny.llava,
    "idefics3": tiny.idefics3,
    "lighton-ocr": tiny.lighton_ocr,
}
OUTER = ("llava", "idefics3", "lighton-ocr")  # whose configuration as a whole may tie the head


def without_head(folder, **changes):
    """Takes the head's tensor out of a folder, and changes its configuration. Returns the names of what it
    took out."""
    weights = load_file(folder / "model.safetensors")
    heads = [name for name in weights if name.endswith("lm_head.weight")]
    save_file({name: x for name, x in weights.items() if name not in heads}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return heads


@pytest.mark.parametrize("kind", DECODERS)
def test_a_head_of_its_own_that_is_not_stored_is_missing(kind, tmp_path):
    text = {"text": {"tie_word_embeddings": False}} if kind == "lighton-ocr" else {}
    DECODERS[kind](tie_word_embeddings=False, **text).save_pretrained(tmp_path / "model")
    assert len(without_head(tmp_path / "model")) == 1
    with pytest.raises(CheckpointError, match=r"do not fit its config.json: missing tensors \S*lm_head.weight\.$"):
        convert_folder(tmp_path / "model", tmp_path / "checkpoint")


@pytest.mark.parametrize("kind", OUTER)
def test_the_configuration_as_a_whole_ties_a_head(kind, tmp_path):
    DECODERS[kind](tie_word_embeddings=True).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    text = config["text_config"] | {"tie_word_embeddings": False}
    assert without_head(tmp_path / "model", text_config=text) == []
    convert_folder(tmp_path / "model", tmp_path / "checkpoint")
    assert Checkpoint.open(tmp_path / "checkpoint").config("decoder")["tied"]
