"""NeMo's T5 archives, as its trainings save them, against the same weights in Hugging Face and in plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PegasusConfig, PegasusForConditionalGeneration

from tests.kits.models import tiny
from tests.kits.models.engines import rebuilt
from tests.kits.publications.nemo_kit import archive, gpt2_files, sentencepiece_file
from tests.kits.publications.nemo_t5_kit import CONVERTED, ROOT, UNTIED, NemoT5, bert_file, config_of
from tests.kits.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder

TEXTS = ["the house", "the old boat is in the harbour, the house is small, the old house", "a small  harbour."]
PIECES = {"library": "megatron", "type": "BertWordPieceCase", "num_sentinel_tokens": 5}
NEW = 12


def pipeline(source: Path, folder: Path, **options) -> Pipeline:
    engine = build_engine(convert_folder(source, folder / "checkpoint"), folder / "engine", BuildConfig())
    return Pipeline(engine, RuntimeConfig(device="cpu", **options))


def check_tokens(pipe: Pipeline, hf, ids: list[list[int]]) -> None:
    """Compares a ragged batch, greedy and with beams, with each text alone in Hugging Face."""
    for options in ({}, {"num_beams": 4}):
        found = pipe.generate([{"text": text} for text in TEXTS], max_new_tokens=NEW, **options)
        want = tiny.hf_texts(hf, ids, NEW, **options)
        assert [out.token_ids for out in found] == want
        assert len({tuple(out.token_ids) for out in found}) == len(TEXTS)


def padded(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fills a vocabulary up to 80 with rows that would win if they were read."""
    names = ("word_embeddings.weight", "tokens_head.weight", "tokens_head.bias")
    more = {n: torch.full((80 - len(x), *x.shape[1:]), 9.0) for n, x in state.items() if n.endswith(names)}
    return state | {name: torch.cat([state[name], rows]) for name, rows in more.items()}


# --- one of Google's that NeMo's script has converted ---
def of_t5(hf) -> dict[str, torch.Tensor]:
    """NeMo's names and layouts of Hugging Face's T5 v1.1, as hf_t5-v1_1_to_nemo.py has them."""
    theirs, found = hf.state_dict(), {f"{ROOT}.tokens_head.weight": hf.lm_head.weight.data}
    for side in ("encoder", "decoder"):
        stack, cross = f"{ROOT}.{ROOT}.{side}.model", side == "decoder"
        found[f"{ROOT}.{side}_embedding.word_embeddings.weight"] = hf.shared.weight.data
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found[f"{ROOT}.{side}_relative_position_embedding.relative_position_embedding.weight"] = theirs[bias]
        found[f"{stack}.final_layernorm.weight"] = theirs[f"{side}.final_layer_norm.weight"]
        for i in range(hf.config.num_layers if side == "encoder" else hf.config.num_decoder_layers):
            block, layer, last = f"{side}.block.{i}.layer", f"{stack}.layers.{i}", 1 + cross
            own = {name: theirs[f"{block}.0.SelfAttention.{name}.weight"] for name in "qkvo"}
            found[f"{layer}.self_attention.query_key_value.weight"] = torch.cat([own[name] for name in "qkv"])
            found[f"{layer}.self_attention.dense.weight"] = own["o"]
            found[f"{layer}.input_layernorm.weight"] = theirs[f"{block}.0.layer_norm.weight"]
            norms = ["post_attention_layernorm", "post_inter_attention_layernorm"]
            if cross:
                own = {name: theirs[f"{block}.1.EncDecAttention.{name}.weight"] for name in "qkvo"}
                found[f"{layer}.inter_attention.query.weight"] = own["q"]
                found[f"{layer}.inter_attention.key_value.weight"] = torch.cat([own["k"], own["v"]])
                found[f"{layer}.inter_attention.dense.weight"] = own["o"]
            for number in range(last):
                found[f"{layer}.{norms[number]}.weight"] = theirs[f"{block}.{number + 1}.layer_norm.weight"]
            names = {"wi_0": "dense_h_to_4h", "wi_1": "dense_h_to_4h_2", "wo": "dense_4h_to_h"}
            for name, ours in names.items():
                found[f"{layer}.mlp.{ours}.weight"] = theirs[f"{block}.{last}.DenseReluDense.{name}.weight"]
    return found


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_a_converted_t5(tp, pp, tmp_path):
    pieces = pytest.importorskip("sentencepiece", reason="sentencepiece writes the tokenizer of this test")
    file = sentencepiece_file(tmp_path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    spoken = pieces.SentencePieceProcessor(model_file=str(file))
    rows = len(spoken) + 3 + 4  # <extra_id_…>, then <cls>, <sep>, <mask>, <bos>
    hf = tiny.t5(seed=4, vocab_size=rows, tied=False, feed_forward_proj="gated-gelu", num_decoder_layers=3, d_kv=12,
                 relative_attention_num_buckets=8, relative_attention_max_distance=20)  # fmt: skip
    side = CONVERTED | {"ffn_hidden_size": 48}
    model = NemoT5(config_of(side, side | {"num_layers": 3}, **UNTIED), vocabulary=80, state=padded(of_t5(hf)))
    said = {"library": "sentencepiece", "num_sentinel_tokens": 3, "sentencepiece_legacy": True,
            "add_sentinel_tokens_in_reverse_order": True, "add_sentinel_tokens_first": True}  # fmt: skip
    folder = model.unpacked(tmp_path / "content", {"model": file}, tp=tp, pp=pp, half=tp == 2, tokenizer=said)
    pipe = pipeline(archive(folder, tmp_path / "t5.nemo"), tmp_path)
    assert pipe.config.vocab_size == rows, "the rows that pad the embedding are left out"
    assert pipe.config.decoder_start_token_id == 0 and pipe.config.eos_token_id == 1
    check_tokens(pipe, hf, [[*spoken.encode(text), 1] for text in TEXTS])


# --- NeMo's own, which is a Pegasus but for where its positions come from ---
def of_pegasus(hf) -> dict[str, torch.Tensor]:
    """NeMo's names and layouts of a Pegasus, whose positions both sides share."""
    theirs, found = hf.state_dict(), {f"{ROOT}.tokens_head.bias": hf.final_logits_bias[0]}
    for side in ("encoder", "decoder"):
        stack = f"{ROOT}.{ROOT}.{side}.model"
        found[f"{ROOT}.{side}_embedding.word_embeddings.weight"] = hf.model.shared.weight.data
        found[f"{ROOT}.{side}_embedding.position_embeddings.weight"] = hf.model.encoder.embed_positions.weight.data
        for kind in ("weight", "bias"):
            found[f"{stack}.final_layernorm.{kind}"] = theirs[f"model.{side}.layer_norm.{kind}"]
            for i in range(2):
                block, layer = f"model.{side}.layers.{i}", f"{stack}.layers.{i}"
                names = {"self_attn_layer_norm": "input_layernorm", "self_attn.out_proj": "self_attention.dense",
                         "fc1": "mlp.dense_h_to_4h", "fc2": "mlp.dense_4h_to_h",
                         "final_layer_norm": "post_attention_layernorm"}  # fmt: skip
                if side == "decoder":
                    names |= {"encoder_attn_layer_norm": "post_attention_layernorm",
                              "final_layer_norm": "post_inter_attention_layernorm",
                              "encoder_attn.q_proj": "inter_attention.query",
                              "encoder_attn.out_proj": "inter_attention.dense"}  # fmt: skip
                    found[f"{layer}.inter_attention.key_value.{kind}"] = by_head(
                        theirs, f"{block}.encoder_attn", kind, "kv"
                    )
                found[f"{layer}.self_attention.query_key_value.{kind}"] = by_head(
                    theirs, f"{block}.self_attn", kind, "qkv"
                )
                found |= {f"{layer}.{ours}.{kind}": theirs[f"{block}.{name}.{kind}"] for name, ours in names.items()}
    return found


def by_head(state: dict[str, torch.Tensor], name: str, kind: str, parts: str) -> torch.Tensor:
    """The projections of a head beside each other, a head after the other."""
    each = [state[f"{name}.{part}_proj.{kind}"] for part in parts]
    return torch.stack([x.view(4, 8, *x.shape[1:]) for x in each], 1).flatten(0, 2)


@pytest.mark.parametrize(("tp", "pp", "flat"), [(1, 1, False), (2, 1, True), (4, 2, False)])
def test_nemos_own_layout(tp, pp, flat, tmp_path):
    """Learned positions, layer norms, biases, a bias of the logits; word pieces."""
    torch.manual_seed(5)
    config = PegasusConfig(
        vocab_size=45, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=44, decoder_ffn_dim=44,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64, eos_token_id=3,
        activation_function="gelu_new", pad_token_id=0, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    hf = tiny.pull_apart(PegasusForConditionalGeneration(config), 5, 0.4, end=3)
    for side in (hf.model.encoder, hf.model.decoder):
        side.embed_positions.weight.data = hf.model.encoder.embed_positions.weight.data
    hf.final_logits_bias = torch.randn(1, 45)
    side = {"activation": "gelu", "kv_channels": None}
    model = NemoT5(config_of(side, flat=flat), state=padded(of_pegasus(hf)))
    folder = model.unpacked(tmp_path / "content", bert_file(tmp_path), tp=tp, pp=pp, tokenizer=PIECES)
    pipe = pipeline(archive(folder, tmp_path / "t5.nemo", "w:gz"), tmp_path)
    assert pipe.config.vocab_size == 45 and pipe.config.position_limit == 64
    check_tokens(pipe, hf, [pipe.tokenizer.encode(text) for text in TEXTS])


# --- all that may differ, against plain torch ---
VARIANTS = {
    "geglu, biases fused": config_of(),
    "sides that differ": config_of(
        {"num_layers": 1, "activation": "fast-swiglu", "bias_activation_fusion": False, "kv_channels": 4},
        {"num_layers": 3, "num_attention_heads": 2, "normalization": "rmsnorm", "bias_activation_fusion": False}),
    "layernorm1p, fast-geglu": config_of({"normalization": "layernorm1p", "activation": "fast-geglu"}),
    "rms norms, no biases, reglu, no scaling": config_of(
        {"normalization": "rmsnorm", "bias": False, "bias_activation_fusion": False, "activation": "reglu",
         "normalize_attention_scores": False, "apply_query_key_layer_scaling": False}),
    "relative positions, scaled scores, layer norms": config_of(
        {"position_embedding_type": "relative", "apply_query_key_layer_scaling": False}),
    "plain gelu, unfused": config_of({"activation": "gelu", "bias_activation_fusion": False}),
    "embeddings apart, the head is the encoder's": config_of(share_token_embeddings=False),
    "embeddings apart, the head too, positions of two kinds": config_of(
        {"position_embedding_type": "relative", "apply_query_key_layer_scaling": False}, {},
        share_token_embeddings=False, share_decoder_tokens_head_embeddings=False),
    "heads one after the other": config_of({"megatron_legacy": True, "activation": "fast-geglu"}),
}  # fmt: skip


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_variants(config, tp, tmp_path):
    model = NemoT5(config, seed=7)
    folder = model.unpacked(tmp_path / "content", bert_file(tmp_path), tp=tp, tokenizer=PIECES)
    pipe = pipeline(folder, tmp_path, max_prefill_tokens=6)
    found = pipe.generate([{"text": text} for text in TEXTS], max_new_tokens=NEW)
    for text, out in zip(TEXTS, found, strict=True):
        ids = pipe.tokenizer.encode(text)
        assert out.token_ids == model.written(ids, NEW, ids=45, start=2, end=3)
        exact = model.logits(ids, [2, *out.token_ids[:-1]])[:, :45].log_softmax(-1)
        want = exact.gather(1, torch.tensor([out.token_ids]).T)[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), want, atol=1e-4, rtol=0)
    assert len({tuple(out.token_ids) for out in found}) == len(TEXTS)


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"tp_size": 2, "pp_size": 2}], ids=str)
def test_split_among_ranks(sizes, tmp_path):
    """Layer norms, biases and learned positions are each rank's."""
    model = NemoT5(config_of(), seed=7)
    folder = model.unpacked(tmp_path / "content", bert_file(tmp_path), tokenizer=PIECES)
    engine = build_engine(convert_folder(folder, tmp_path / "checkpoint"), tmp_path / "engine", BuildConfig())

    def tokens(pipe: Pipeline) -> list[list[int]]:
        return [out.token_ids for out in pipe.generate([{"text": text} for text in TEXTS], max_new_tokens=NEW)]

    split = rebuilt(engine, **sizes)
    assert with_followers(split, RuntimeConfig(device="cpu"), tokens) == tokens(
        Pipeline(engine, RuntimeConfig(device="cpu"))
    )


def test_gpt2s_vocabulary(tmp_path):
    """Of a BART, say: the end of text begins and ends outputs, and pads."""
    files = gpt2_files(tmp_path)
    model = NemoT5(config_of(target="MegatronBARTModel"), seed=3)
    folder = model.unpacked(tmp_path / "content", files, tokenizer={"library": "megatron", "type": "GPT2BPETokenizer"})
    pipe = pipeline(folder, tmp_path)
    [out] = pipe.generate([{"text": TEXTS[0]}], max_new_tokens=NEW)
    ids = pipe.tokenizer.encode(TEXTS[0])
    assert out.token_ids == model.written(ids, NEW, ids=42, start=41, end=41)
