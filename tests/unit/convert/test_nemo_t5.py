"""NeMo's T5: what its configurations and tokenizers say, and what is refused by name."""

from __future__ import annotations

import pytest
import torch
import yaml

from llm_engines.converters.nemo.t5_tokenizer import text_ends, tokenizer_files
from tests.kits.publications.nemo_kit import archive, change_tensor, refused, sentencepiece_file
from tests.kits.publications.nemo_t5_kit import ROOT, NemoT5, bert_file, config_of
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, ConfigError
from vlm.processing.text.tokenization import Tokenizer

PIECES = {"library": "megatron", "type": "BertWordPieceCase", "num_sentinel_tokens": 5}


@pytest.fixture
def folder(tmp_path):
    """The content of an archive of two stages of one rank."""
    return NemoT5(config_of()).unpacked(tmp_path / "content", bert_file(tmp_path), pp=2, tokenizer=PIECES)


def _set(folder, **more):
    path = folder / "model_config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | more, sort_keys=False))


def test_every_unsupported_field_is_named_at_once(folder, tmp_path):
    wrong = {"normalization": "batchnorm", "activation": "squared-relu", "position_embedding_type": "alibi",
             "transformer_block_type": "normformer", "num_moe_experts": 8, "headscale": True, "arch": "perceiver",
             "onnx_safe": True}  # fmt: skip
    right = config_of()["decoder"]
    _set(folder, encoder=right | wrong, decoder=right | {"num_layers": None, "ffn_hidden_size": "${multiply:1,2}"},
         hiddens={"enc_output_name": "z"})  # fmt: skip
    said = refused(folder, tmp_path, ConfigError)
    assert said.startswith("this NeMo T5 configuration cannot be run exactly: ")
    assert all(f"{name} is {value!r}" in said for name, value in wrong.items())
    assert "hiddens is {'enc_output_name': 'z'}" in said
    assert "num_layers is missing" in said and "ffn_hidden_size is '${multiply:1,2}'" in said


RELATIVE = {"position_embedding_type": "relative"}
COMBINED = {
    "apply_query_key_layer_scaling is True with relative positions": config_of(RELATIVE),
    "apply_query_key_layer_scaling is True with normalize_attention_scores False": config_of(
        {"normalize_attention_scores": False}),
    "relative_position_bias_self_attention_only is False": config_of(
        RELATIVE | {"apply_query_key_layer_scaling": False, "relative_position_bias_self_attention_only": False}),
    "encoder and decoder differ in hidden_size": config_of({}, {"hidden_size": 64}),
    "encoder and decoder differ in learned_positions": config_of(
        RELATIVE | {"apply_query_key_layer_scaling": False}, {}),
    "bias_activation_fusion is True with the activation fast-swiglu": config_of({"activation": "fast-swiglu"}),
    "openai_gelu is True with the activation swiglu": config_of(
        {"activation": "swiglu", "bias_activation_fusion": False, "openai_gelu": True}),
    "max_position_embeddings is 0": config_of(max_position_embeddings=0),
    "hidden_size 32 is no multiple of num_attention_heads 5, and kv_channels is missing": config_of(
        {"num_attention_heads": 5, "kv_channels": None}),
    "relative_attention_num_buckets is 3, it must be at least 4": config_of({"relative_attention_num_buckets": 3}),
}  # fmt: skip


@pytest.mark.parametrize("says", COMBINED)
def test_fields_that_do_not_go_together(says, folder, tmp_path):
    _set(folder, **COMBINED[says])
    assert says in refused(folder, tmp_path, ConfigError)


def _changed(folder, name, change, stage=0):
    change_tensor(folder / f"tp_rank_00_pp_rank_00{stage}" / "model_weights.ckpt", name, change)


def _stray(folder):
    path = folder / "tp_rank_00_pp_rank_001" / "model_weights.ckpt"
    torch.save(torch.load(path, weights_only=True) | {f"{ROOT}.adapter.weight": torch.zeros(1)}, path)


DAMAGE = {
    "lacks tp_rank_00_pp_rank_001/model_weights.ckpt of its 2 ranks":
        lambda f: (f / "tp_rank_00_pp_rank_001").rename(f / "tp_rank_00_pp_rank_002"),
    "pipeline_model_parallel_size is 3, but there are weights of 2": lambda f: _set(f, pipeline_model_parallel_size=3),
    "lack enc_dec_model.encoder_embedding.word_embeddings.weight": lambda f: _changed(
        f, "encoder_embedding.word_embeddings.weight", lambda x: None),
    r"unexpected tensors enc_dec_model.adapter.weight": _stray,
    r"decoder.model.layers.1.inter_attention.key_value.weight: shape .* is invalid": lambda f: _changed(
        f, "layers.1.inter_attention.key_value.weight", lambda x: x[:-8], stage=1),
    r"missing tensors enc_dec_model.enc_dec_model.decoder.model.layers.2": lambda f: _set(
        f, decoder=config_of()["decoder"] | {"num_layers": 3}),
    r"unexpected tensors enc_dec_model.enc_dec_model.encoder.model.layers.1": lambda f: _set(
        f, encoder=config_of()["encoder"] | {"num_layers": 1}),
    "the tokenizer has 45 ids, the embedding 44 rows": lambda f: _changed(
        f, "word_embeddings.weight", lambda x: x[:44]),
    "holds no tokenizer .it names google/mt5-base.; unpack it": lambda f: _set(
        f, tokenizer={"library": "huggingface", "type": "google/mt5-base"}),
    "has no token for bos, eos, pad; it is not that of a T5":
        lambda f: next(f.glob("*vocab.txt")).write_text("[UNK]\na"),
}  # fmt: skip


@pytest.mark.parametrize("says", DAMAGE)
def test_what_is_missing_damaged_or_does_not_fit(says, folder, tmp_path):
    DAMAGE[says](folder)
    path = archive(folder, tmp_path / "model.nemo")
    with pytest.raises(CheckpointError, match=says) as caught:
        convert_folder(path, tmp_path / "out")
    assert str(path) in str(caught.value) and ".tmp" not in str(caught.value)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["é" * 400, "a\0b", "/" * 500, "..", ".", 10**200])
def test_names_that_no_file_has(name, folder, tmp_path):
    _set(folder, tokenizer=PIECES | {"vocab_file": name})
    assert "which its model_config.yaml names as its tokenizer" in refused(folder, tmp_path)


def test_absurd_numbers_of_tokens(folder, tmp_path):
    _set(folder, tokenizer=PIECES | {"vocab_file": next(folder.glob("*vocab.txt")).name, "num_sentinel_tokens": 10**9})
    assert "num_sentinel_tokens is 1000000000, the limit is 131,072" in refused(folder, tmp_path, ConfigError)


SFT, T0 = "MegatronT5SFTModel", "MegatronT0Model"
GOOGLES = {"tokenizer": {"add_sentinel_tokens_first": True}}


@pytest.mark.parametrize(("config", "want"), [
    ({}, (False, False, "bos")), (GOOGLES, (False, True, "pad")), ({"data": {"train_ds": None}}, (False, False, "bos")),
    ({"target": SFT, "data": {"train_ds": {"add_bos": False, "add_eos": True}}}, (False, True, "bos")),
    ({"target": SFT, "data": {"train_ds": {"replace_bos_with_pad": True}}}, (True, True, "pad")),
    ({"target": T0, "data": {"train_ds": {}}}, (False, False, "bos")),
    ({"target": "MegatronT5GLUEModel", "data": {"train_ds": {"task_name": "mnli"}}}, (False, False, "bos")),
    ({"target": T0, "data": {"train_ds": {"add_eos_to_input": True}}, **GOOGLES}, (False, True, "bos")),
])  # fmt: skip
def test_what_begins_and_ends_texts(config, want):
    assert text_ends(config) == want


def _ids_of(spoken, special: dict[str, int], text: str) -> list[int]:
    """As NeMo's SentencePieceTokenizer does with `legacy`: what stands between special tokens is a text of its own."""
    ids: list[int] = []
    while found := min((text.find(t), t) for t in special if t in text) if any(t in text for t in special) else None:
        ids += [*spoken.encode(text[: found[0]]), special[found[1]]]
        text = text[found[0] + len(found[1]) :]
    return ids + spoken.encode(text)


@pytest.mark.parametrize("googles", [False, True])
def test_the_tokens_that_nemo_adds(googles, tmp_path):
    pieces = pytest.importorskip("sentencepiece", reason="sentencepiece writes the tokenizer of this test")
    file = sentencepiece_file(tmp_path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    spoken = pieces.SentencePieceProcessor(model_file=str(file))
    (tmp_path / "made").mkdir()
    said = {"library": "sentencepiece", "model": str(file), "num_sentinel_tokens": 2}
    said |= dict.fromkeys(("add_sentinel_tokens_first", "add_sentinel_tokens_in_reverse_order"), googles)
    files = tokenizer_files(tmp_path, {"tokenizer": said, "data": {"dataset_type": "ul2"}}, tmp_path / "made")
    base = ["<cls>", "<sep>", "<mask>", "<bos>"]
    sentinels = ["<extra_id_1>", "<extra_id_0>"] if googles else ["<extra_id_0>", "<extra_id_1>"]
    order = [*sentinels, *base] if googles else [*base, *sentinels]
    order += [f"<extra_id_{name}>" for name in "rsx"]
    special = {token: len(spoken) + i for i, token in enumerate(order)}
    assert files.size == len(spoken) + len(order)
    start = 0 if googles else special["<bos>"]
    assert files.ids == {"bos_token_id": special["<bos>"], "eos_token_id": 1, "pad_token_id": 0,
                         "decoder_start_token_id": start}  # fmt: skip
    tokenizer = Tokenizer.from_dir(tmp_path / "made")
    for text in ("the house is small", "<extra_id_r> the <extra_id_0> harbour<extra_id_1>", "a<sep>b"):
        assert tokenizer.encode_source(text) == _ids_of(spoken, special, text) + [1] * googles
    assert tokenizer.decode([*spoken.encode("the house"), special["<extra_id_0>"], 1]) == "the house"


def test_word_pieces_of_a_tuned_model(tmp_path):
    files = bert_file(tmp_path)
    settings = {"tokenizer": PIECES | {"type": "BertWordPieceLowerCase", "vocab_file": str(files["vocab_file"])},
                "target": SFT, "data": {"train_ds": {}}}  # fmt: skip
    (tmp_path / "made").mkdir()
    made = tokenizer_files(tmp_path, settings, tmp_path / "made")
    assert made.size == 45 and made.ids["decoder_start_token_id"] == 2
    tokenizer = Tokenizer.from_dir(tmp_path / "made")
    assert tokenizer.encode_source("The Houses, <extra_id_3>.") == [2, 7, 8, 31, 6, 43, 5, 3]
    assert tokenizer.decode([2, 7, 8, 31, 3]) == "the houses"
