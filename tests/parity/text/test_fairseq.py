"""FairSeq checkpoints in their published layout against a straightforward computation of the same maths."""

from __future__ import annotations

import pytest
import torch

import vlm
from llm_engines.converters.fairseq import parse
from tests.kits.publications.fairseq_kit import Published
from tests.parity.cases import parity
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, ConfigError
from vlm_app.cli.main import main

TEXTS = ["w1 w2 w3 w4", "w30", "w7 w7 w9 w30 w2 w11 w12 w5 w6 w1 w0 w3", "w5 unheard w6"]
SHAPES = {
    "vaswani: post-norm, sines, joined dictionary": ({"share_all_embeddings": True}, {}),
    "separate dictionaries, own head, first releases' names": ({"separate": True}, {"old_names": True}),
    "fused projections, tied head": ({"share_decoder_input_output_embed": True}, {"fused": True}),
    "first releases, fused, tied": ({"share_all_embeddings": True}, {"fused": True, "old_names": True}),
    "pre-norm, learned positions, gelu, newer file": (
        {"encoder_normalize_before": True, "decoder_normalize_before": True, "encoder_learned_pos": True,
         "decoder_learned_pos": True, "activation_fn": "gelu"}, {"newer": True}),
    "sides that differ, norm of embeddings, unscaled": (
        {"encoder_normalize_before": True, "layernorm_embedding": True, "no_scale_embedding": True,
         "decoder_learned_pos": True, "separate": True}, {"newer": True}),
    "pre-norm encoder of the first releases: no last norm": (
        {"encoder_normalize_before": True, "version": 1, "share_all_embeddings": True}, {"old_names": True}),
    "a configuration with a part a side": (
        {"encoder_normalize_before": True, "decoder_learned_pos": True, "share_all_embeddings": True},
        {"nested": True}),
    "no last norm in the decoder": (
        {"decoder_normalize_before": True, "no_decoder_final_norm": True, "encoder_layers": 1}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", parity({"fairseq": SHAPES}))
def test_tokens_and_log_probabilities(case, tmp_path):
    options, written = case.make
    model = Published(seed=5, **options)
    folder = model.write(tmp_path / "fairseq", **written)
    engine = build_engine(convert_folder(folder, tmp_path / "ckpt"), tmp_path / "engine", BuildConfig())
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", burst=3, max_batch_size=3))
    assert pipe.family.name == case.family
    found = pipe.generate(TEXTS, max_new_tokens=12)
    for text, out in zip(TEXTS, found, strict=True):
        ids = [4 + int(word[1:]) if word != "unheard" else 3 for word in text.split()] + [2]
        tokens, logprobs = model.greedy(ids, 12)
        assert out.token_ids == tokens
        torch.testing.assert_close(out.logprobs, logprobs, atol=1e-4, rtol=1e-5)
        assert out.text == " ".join(f"w{token - 4}" for token in tokens if token > 3)
    assert len({tuple(out.logprobs) for out in found}) == len(TEXTS), "the texts make no difference"


def test_loading_a_folder_and_the_verbs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    folder = Published(seed=5).write(tmp_path / "wmt")
    want = vlm.load(folder, device="cpu").generate("w1 w2", max_new_tokens=8).text
    with pytest.raises(SystemExit) as done:
        main(["convert", str(folder), "-o", str(tmp_path / "ckpt")])
    assert not done.value.code
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "ckpt")])
    assert "fairseq" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main(["translate", "w1 w2", "--model", str(tmp_path / "ckpt"), "--max-new-tokens", "8", "--device", "cpu"])
    assert not done.value.code and capsys.readouterr().out.strip() == want
    languages = ["--src-lang", "en", "--tgt-lang", "fr", "--max-new-tokens", "8"]
    with pytest.raises(SystemExit) as done:
        main(["translate", "w1 w2", "--model", str(folder), "--device", "cpu", *languages])
    assert not done.value.code and capsys.readouterr().out.strip() == want
    with pytest.raises(SystemExit) as done:
        main(["translate", "w1", "--model", str(folder), "--tgt-lang", "de"])
    assert done.value.code == 2 and "this model translates en to fr; give these" in capsys.readouterr().err


def test_a_folder_that_names_no_languages(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    folder = Published(seed=5, source_lang=None, target_lang=None, share_all_embeddings=True).write(tmp_path / "wmt")
    (folder / "dict.fr.txt").unlink()
    with pytest.raises(SystemExit) as done:
        main(["translate", "w1", "--model", str(folder), "--tgt-lang", "fr"])
    assert done.value.code == 2 and "this model knows one pair of languages" in capsys.readouterr().err


class Trap:
    """Would create a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_nothing_in_a_file_is_run(tmp_path):
    folder, trap = Published().write(tmp_path / "wmt"), tmp_path / "trapped"
    torch.save({"args": None, "model": {}, "extra": Trap(str(trap))}, folder / "model.pt")
    with pytest.raises(CheckpointError, match="could run code, so it is not loaded"):
        convert_folder(folder, tmp_path / "out")
    assert not trap.exists() and not (tmp_path / "out").exists()


def test_what_does_not_fit_is_said(tmp_path):
    refused = {
        "adaptive_softmax_cutoff": "100,200", "decoder_output_dim": 8, "activation_fn": "tanh", "arch": "lightconv",
        "cross_self_attention": True, "quant_noise_pq": 0.1,
    }  # fmt: skip
    for name, value in refused.items():
        model = Published()
        model.options[name] = value
        with pytest.raises(ConfigError, match="width" if name == "decoder_output_dim" else name):
            convert_folder(model.write(tmp_path / name), tmp_path / "out")
    changes = {
        "has 41 entries with the four special ones, its embedding 40 rows": lambda f: _append(
            f / "dict.en.txt", "x 1\n"
        ),
        "dict.en.txt line 1 is no dictionary entry": lambda f: (f / "dict.en.txt").write_text("nothing\n"),
        "lacks the decoder's dictionary dict.fr.txt": lambda f: (f / "dict.fr.txt").rename(f / "dict.xx.txt"),
        "damaged or truncated|damaged, or holds": lambda f: (f / "model.pt").write_bytes(b"PK\3\4 nothing"),
        "should hold model.pt, or one .pt file; it holds a.pt, b.pt": _two,
        "version 0.1; 0.2 is supported": lambda f: (f / "bpecodes").write_text("#version: 0.1\na b\n"),
        "bpecodes line 1 is no merge": lambda f: (f / "bpecodes").write_text("abc\n"),
        "SentencePiece": lambda f: (f / "sentencepiece.bpe.model").write_bytes(b"x"),
        r"missing tensors encoder.layers.1.fc1.weight.*unexpected tensors encoder.stray": _other_tensors,
    }
    for number, (words, change) in enumerate(changes.items()):
        folder = Published().write(tmp_path / f"changed{number}")
        change(folder)
        with pytest.raises(CheckpointError, match=words):
            convert_folder(folder, tmp_path / "out")


def _append(path, text):
    path.write_text(path.read_text() + text)


def _two(folder):
    (folder / "model.pt").rename(folder / "a.pt")
    (folder / "b.pt").write_bytes((folder / "a.pt").read_bytes())


def _other_tensors(folder):
    model = Published()
    del model.state["encoder.layers.1.fc1.weight"]
    model.state["encoder.stray"] = torch.zeros(1)
    (folder / "model.pt").unlink()
    model.write(folder / "again")
    (folder / "again" / "model.pt").rename(folder / "model.pt")


def test_what_a_file_does_not_say_is_as_in_the_base_architecture():
    said = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 96, "encoder_layers": 3, "encoder_attention_heads": 4,
            "encoder_normalize_before": True}  # fmt: skip
    decoder = parse(said, "decoder", 40, version=3)
    assert (decoder.hidden_size, decoder.ffn_size) == (64, 96), "widths are the encoder's"
    assert (decoder.num_layers, decoder.num_heads, decoder.pre_norm) == (6, 8, False), "all else is its own"
