"""NeMo's archives, as its trainings save them, against the same weights in Hugging Face's GPT-2 and in plain torch."""

from __future__ import annotations

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel

import vlm
from tests.kits.cli_kit import call
from tests.kits.models.tiny import hf_continued
from tests.kits.publications.nemo_kit import GPTNext, archive, gpt2_files, sentencepiece_file
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder

TEXTS = ["the house", "the old boat is in the harbour, the house", "a small  harbour."]
GPT2_LIKE = {"position_embedding_type": "learned_absolute", "activation": "gelu", "bias": True, "vocab_size": 48,
             "normalization": "layernorm", "share_embeddings_and_output_weights": True, "eos_token_id": 41}  # fmt: skip
ROOT = "model.language_model"


def pipeline(source, folder) -> Pipeline:
    engine = build_engine(convert_folder(source, folder / "checkpoint"), folder / "engine", BuildConfig())
    return Pipeline(engine, RuntimeConfig(device="cpu", max_prefill_tokens=6))


def hugging_face(model: GPTNext) -> GPT2LMHeadModel:
    """A GPT-2-like one: projections turned, a head's q, k and v apart."""
    c = model.config
    config = GPT2Config(
        vocab_size=c["vocab_size"], n_embd=32, n_head=4, n_layer=2, n_inner=44, n_positions=96, bos_token_id=41,
        eos_token_id=41,
    )  # fmt: skip
    names = {
        "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_attn": "self_attention.query_key_value",
        "attn.c_proj": "self_attention.dense", "mlp.c_fc": "mlp.dense_h_to_4h", "mlp.c_proj": "mlp.dense_4h_to_h",
    }  # fmt: skip
    state = {"wte.weight": f"{ROOT}.embedding.word_embeddings.weight",
             "wpe.weight": f"{ROOT}.embedding.position_embeddings.weight"}  # fmt: skip
    state |= {f"ln_f.{kind}": f"{ROOT}.encoder.final_layernorm.{kind}" for kind in ("weight", "bias")}
    state |= {f"h.{i}.{a}.{kind}": f"{ROOT}.encoder.layers.{i}.{b}.{kind}"
              for i in range(2) for a, b in names.items() for kind in ("weight", "bias")}  # fmt: skip
    found = {}
    for name, theirs in state.items():
        x = model.state[theirs]
        if "c_attn" in name:
            x = x.view(4, 3, 8, *x.shape[1:]).transpose(0, 1).reshape(x.shape)
        found[f"transformer.{name}"] = x.T if "c_" in name and name.endswith("weight") else x
    hf = GPT2LMHeadModel(config)
    hf.load_state_dict(found | {"lm_head.weight": found["transformer.wte.weight"]})
    return hf.eval()


@pytest.mark.parametrize(("ranks", "stages"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_gpt2_like_with_learned_positions(ranks, stages, tmp_path):
    model = GPTNext(seed=3, **GPT2_LIKE)
    files = gpt2_files(tmp_path)
    folder = model.unpacked(tmp_path / "content", files, ranks, half=ranks == 2, stages=stages)
    pipe = pipeline(archive(folder, tmp_path / "gpt.nemo"), tmp_path)
    tokenizer = ByteLevelBPETokenizer(*map(str, files.values()))
    hf = hugging_face(model)
    assert pipe.config.vocab_size == 42, "the rows that pad the embedding are left out"
    hf.resize_token_embeddings(42, mean_resizing=False)
    found = pipe.generate([{"raw_prompt": text} for text in TEXTS], max_new_tokens=12, top_logprobs=3)
    for text, out in zip(TEXTS, found, strict=True):
        ids = tokenizer.encode(text).ids
        assert out.token_ids == hf_continued(hf, ids, 12)
        exact = hf(torch.tensor([ids + out.token_ids])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
        torch.testing.assert_close(torch.tensor(out.logprobs), exact.gather(1, torch.tensor([out.token_ids]).T)[:, 0],
                                   atol=1e-4, rtol=0)  # fmt: skip
        assert out.text == tokenizer.decode(out.token_ids)
    assert len({tuple(out.token_ids) for out in found}) == len(TEXTS)


NEXT = {
    "gate and its other half joined, no biases, layernorm1p, half of a head turned": {},
    "the gate apart, plain norms, all of a head turned": {
        "activation": "swiglu", "normalization": "layernorm", "rotary_percentage": 1.0, "rotary_base": 5000},
    "geglu, biases fused": {"activation": "fast-geglu", "bias": True},
    "biases that are not fused, positions that are stretched": {
        "activation": "gelu", "bias": True, "bias_activation_fusion": False, "seq_len_interpolation_factor": 2},
    "rms norms": {"normalization": "rmsnorm"},
    "scores as they are": {"normalize_attention_scores": False},
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("options", NEXT.values(), ids=NEXT)
def test_gpt_next(options, ranks, tmp_path):
    pieces = pytest.importorskip("sentencepiece", reason="sentencepiece writes the tokenizer of this test")
    file = sentencepiece_file(tmp_path, "bpe" if options else "unigram")
    spoken = pieces.SentencePieceProcessor(model_file=str(file))
    model = GPTNext(seed=6, vocab_size=64, **options)
    folder = model.unpacked(tmp_path / "content", {"model": file}, ranks)
    pipe = pipeline(folder, tmp_path)
    found = pipe.generate([{"raw_prompt": text} for text in TEXTS], max_new_tokens=12)
    for text, out in zip(TEXTS, found, strict=True):
        assert out.token_ids == model.continued(spoken.encode(text), 12, ids=len(spoken))
        assert out.text == spoken.decode(out.token_ids)
    assert len({tuple(out.token_ids) for out in found}) == len(TEXTS)


def test_the_verbs_take_archives(tmp_path, monkeypatch):
    """Plain and gzip, by whatever names tar gives its members; a changed archive is built again."""
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    files = gpt2_files(tmp_path)
    folder = GPTNext(seed=3, **GPT2_LIKE).unpacked(tmp_path / "content", files, 2)
    packed = archive(folder, tmp_path / "gpt.nemo")
    zipped = archive(folder, tmp_path / "zipped.nemo", "w:gz", root="")
    want = pipeline(folder, tmp_path).generate(raw_prompt="the house", max_new_tokens=8).text
    short = ("--max-new-tokens", 8, "--device", "cpu")
    for model in (packed, zipped):
        result = call("run", "--raw-prompt", "the house", "--model", model, *short)
        assert (result.exit_code, result.stdout) == (0, want + "\n"), result.stderr
    result = call("generate", "the house", "--model", packed, *short)
    assert (result.exit_code, result.stdout) == (0, want + "\n"), result.stderr
    result = call("convert", packed, "-o", tmp_path / "new" / "ckpt")
    assert result.exit_code == 0, result.stderr
    assert Checkpoint.open(tmp_path / "new" / "ckpt").source == "gpt.nemo"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ckpt"]
    assert "nemo" in call("inspect", packed).stdout
    other = GPTNext(seed=4, **GPT2_LIKE).unpacked(tmp_path / "other", files)
    archive(other, packed)
    assert vlm.load(packed, device="cpu").generate(raw_prompt="the house", max_new_tokens=8).text != want
