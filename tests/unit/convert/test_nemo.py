"""NeMo archives that are damaged, unsafe or of another kind: one sentence each, and nothing is left behind."""

from __future__ import annotations

import io
import json
import tarfile

import pytest
import torch

from llm_engines.converters.nemo.gpt import tokenizer_files
from tests.kits.cli_kit import call
from tests.kits.publications.nemo_kit import (
    HASH,
    GPTNext,
    archive,
    change_tensor,
    gpt2_files,
    refused,
    sentencepiece_file,
)
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, ConfigError
from vlm.processing.text.tokenization import Tokenizer

CONFIG = {"position_embedding_type": "learned_absolute", "vocab_size": 48}


@pytest.fixture
def folder(tmp_path):
    """The content of an archive of two ranks."""
    return GPTNext(**CONFIG).unpacked(tmp_path / "content", gpt2_files(tmp_path), 2)


def test_archives_that_are_cut_short_or_none(folder, tmp_path):
    for mode in ("w", "w:gz"):
        path = archive(folder, tmp_path / "model.nemo", mode)
        for share in (0.3, 0.6, 0.9):
            whole = path.read_bytes()
            (tmp_path / "cut.nemo").write_bytes(whole[: int(len(whole) * share)])
            said = refused(tmp_path / "cut.nemo", tmp_path)
            assert said.startswith(f"{tmp_path / 'cut.nemo'} ") and "damaged or truncated" in said
    for data in (b"", b"no archive at all" * 99):
        (tmp_path / "none.nemo").write_bytes(data)
        assert "is no NeMo archive, damaged or truncated" in refused(tmp_path / "none.nemo", tmp_path)


@pytest.mark.parametrize(("name", "kind", "link"), [
    ("../outside", tarfile.REGTYPE, ""), ("sub/../../outside", tarfile.REGTYPE, ""),
    ("link", tarfile.SYMTYPE, "/etc/hostname"), ("link", tarfile.LNKTYPE, "../../outside"),
    ("pipe", tarfile.FIFOTYPE, ""),
])  # fmt: skip
def test_members_that_leave_the_archive(folder, tmp_path, name, kind, link):
    path = archive(folder, tmp_path / "model.nemo")
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        tar.addfile(member, io.BytesIO())
    assert "is not unpacked: its member" in refused(path, tmp_path)
    assert not (tmp_path / "outside").exists() and not (tmp_path.parent / "outside").exists()


class Trap:
    """Would create a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_nothing_in_a_file_is_run(folder, tmp_path):
    trap = tmp_path / "trapped"
    torch.save({"model.x": Trap(str(trap))}, folder / "mp_rank_01" / "model_weights.ckpt")
    path = archive(folder, tmp_path / "model.nemo")
    assert f"{path}/mp_rank_01/model_weights.ckpt is damaged or holds Python objects" in refused(path, tmp_path)
    (folder / "model_config.yaml").write_text(f"!!python/object/apply:builtins.open ['{trap}', 'w']")
    sentence = refused(folder, tmp_path)
    assert "model_config.yaml is damaged: it is no valid YAML" in sentence and sentence.endswith("; fetch it again.")
    assert not trap.exists()


def test_every_unsupported_field_is_named_at_once(tmp_path):
    wrong = {
        "normalization": "low_precision_layernorm", "activation": "squared-relu", "position_embedding_type": "alibi",
        "transformer_block_type": "post_ln", "num_moe_experts": 8, "headscale": True, "megatron_legacy": True,
        "window_size": [64, 0], "kv_channels": 16,
    }  # fmt: skip
    folder = GPTNext(**CONFIG).unpacked(
        tmp_path / "content", gpt2_files(tmp_path), **wrong, num_layers=None, layernorm_epsilon="${multiply:1,2}"
    )
    said = refused(folder, tmp_path, ConfigError)
    assert all(f"{name} is {value!r}" in said for name, value in wrong.items() if name != "kv_channels")
    assert "kv_channels is 16, hidden_size 32, num_attention_heads 4" in said
    assert "num_layers is missing" in said and "layernorm_epsilon is '${multiply:1,2}'" in said


def _changed(folder, name, change, rank=0):
    change_tensor(folder / f"mp_rank_{rank:02d}" / "model_weights.ckpt", name, change)


def _stray(folder):
    for rank in (0, 1):
        path = folder / f"mp_rank_{rank:02d}" / "model_weights.ckpt"
        state = torch.load(path, weights_only=True)
        name = "model.language_model.encoder.layers.1.mlp.dense_4h_to_h.weight"
        torch.save({n: x for n, x in state.items() if n != name} | {"model.stray": torch.zeros(1)}, path)


def _moved(folder, old, new):
    (folder / old).rename(folder / new)


DAMAGE = {
    "holds no model_config.yaml": lambda f: _moved(f, "model_config.yaml", "config.yaml"),
    "model_config.yaml is damaged: it is no valid YAML": lambda f: (f / "model_config.yaml").write_text("a: [1"),
    "model_config.yaml is damaged: it is no valid YAML .it has aliases":
        lambda f: (f / "model_config.yaml").write_text("a: &a [1]\nb: [*a, *a]"),
    "model_config.yaml cannot be read: it has more than 262,144 bytes":
        lambda f: (f / "model_config.yaml").write_text("a" * 2**18 + ": 1"),
    "model_config.yaml is damaged: it holds a list": lambda f: (f / "model_config.yaml").write_text("[1]"),
    "lacks mp_rank_01/model_weights.ckpt of its 2 ranks": lambda f: _moved(f, "mp_rank_01", "mp_rank_02"),
    "tensor_model_parallel_size is 2, but there are weights of 1": lambda f: _moved(f, "mp_rank_01", "other"),
    "holds no weights": lambda f: [_moved(f, f"mp_rank_0{i}", f"x{i}") for i in (0, 1)],
    "lacks tp_rank_00_pp_rank_000/model_weights.ckpt, tp_rank_00_pp_rank_001/model_weights.ckpt of its 2":
        lambda f: _moved(f, "mp_rank_01", "tp_rank_00_pp_rank_999999999999"),
    "model_weights.ckpt is damaged or holds Python objects":
        lambda f: (f / "mp_rank_00" / "model_weights.ckpt").write_bytes(b"PK"),
    "ranks 0 and 1 differ in their tensors model.language_model.output_layer.weight":
        lambda f: _changed(f, "output_layer.weight", lambda x: None, rank=1),
    "the ranks' parts of .*query_key_value.weight do not fit": lambda f: _changed(
        f, "layers.0.self_attention.query_key_value.weight", lambda x: x[:, :-1], rank=1),
    r"missing tensors .*1.mlp.dense_4h_to_h.weight.*unexpected tensors model.stray": _stray,
    r"final_layernorm.weight: shape \[31\] should be \[32\]": lambda f: _changed(
        f, "final_layernorm.weight", lambda x: x[:-1]),
    r"lack model.language_model.embedding.word_embeddings.weight": lambda f: [
        _changed(f, "word_embeddings.weight", lambda x: None, rank) for rank in (0, 1)],
    "the tokenizer has 42 ids, the embedding 34 rows": lambda f: _changed(
        f, "word_embeddings.weight", lambda x: x[:10]),
    f"lacks {HASH}_merges.txt, which its model_config.yaml names": lambda f: _moved(f, f"{HASH}_merges.txt", "m.txt"),
    "are no vocabulary and merges of GPT-2's kind": lambda f: (f / f"{HASH}_merges.txt").write_text("a b c d\n"),
}  # fmt: skip


@pytest.mark.parametrize("says", DAMAGE)
def test_what_is_missing_damaged_or_does_not_fit(says, folder, tmp_path):
    DAMAGE[says](folder)
    if says != "holds no model_config.yaml":
        with pytest.raises(CheckpointError, match=says):
            convert_folder(folder, tmp_path / "out")
    path = archive(folder, tmp_path / "model.nemo")
    with pytest.raises(CheckpointError, match=says) as caught:
        convert_folder(path, tmp_path / "out")
    assert str(path) in str(caught.value) and ".tmp" not in str(caught.value)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_other_models_and_tokenizers_from_elsewhere(tmp_path):
    files = gpt2_files(tmp_path)
    other = GPTNext(**CONFIG).unpacked(tmp_path / "bert", files, target="nemo.collections.nlp.MegatronBertModel")
    assert "is of a MegatronBertModel; of NeMo's models GPT, T5, T0, BART are supported" in refused(
        other, tmp_path, ConfigError
    )
    prompts = {"virtual_prompt_style": "p-tuning", "language_model_path": "gpt.nemo"}
    tuned = GPTNext(**CONFIG).unpacked(tmp_path / "prompts", files, **prompts)
    assert "tuned prompts alone" in (said := refused(tuned, tmp_path, ConfigError)) and "--model being gpt.nemo" in said
    assert "vlm convert makes a folder of them; give that with --prompt-table" in said
    lora = GPTNext(**CONFIG).unpacked(tmp_path / "lora", files, peft={"peft_scheme": "lora"})
    assert "an adapter alone (lora), which is no model; give its base" in refused(lora, tmp_path, ConfigError)
    named = {"library": "huggingface", "type": "meta-llama/Llama-2-7b-hf"}
    folder = GPTNext(**CONFIG).unpacked(tmp_path / "llama", {}, tokenizer=named)
    assert "holds no tokenizer (it names meta-llama/Llama-2-7b-hf); unpack it" in refused(folder, tmp_path)
    (tmp_path / "made").mkdir()
    [made, _] = tokenizer_files(tmp_path, {"tokenizer": {n: str(f) for n, f in files.items()}}, tmp_path / "made").paths
    (folder / "tokenizer.json").write_bytes(made.read_bytes())
    assert (convert_folder(folder, tmp_path / "out").path / "processor" / "tokenizer.json").is_file()
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is not a readable tokenizer" in refused(folder, tmp_path)


def test_tokens_that_a_configuration_adds(tmp_path):
    pytest.importorskip("sentencepiece", reason="sentencepiece writes the tokenizer of this test")
    file = sentencepiece_file(tmp_path)
    (tmp_path / "made").mkdir()
    said = {"model": str(file), "special_tokens": {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<s>"},
            "additional_special_tokens": ["<turn>"]}  # fmt: skip
    found = tokenizer_files(tmp_path, {"tokenizer": said}, tmp_path / "made")
    first = found.size - 3
    assert found.ids == {"bos_token_id": first, "eos_token_id": first + 1, "pad_token_id": 1}
    tokenizer = Tokenizer.from_dir(tmp_path / "made")
    assert tokenizer.eos_token == "<eos>" and tokenizer.encode("<turn>") == [first + 2]
    assert tokenizer.decode([*tokenizer.encode("the house"), first + 1]) == "the house"
    assert json.loads((tmp_path / "made" / "tokenizer_config.json").read_text())["bos_token"] == "<bos>"


def test_models_of_megatron_core(folder, tmp_path):
    """Their weights are not unpacked."""
    config = (folder / "model_config.yaml").read_text()
    for name in ("mcore_gpt", "mcore_t5"):
        (folder / "model_config.yaml").write_text(f"{config}{name}: true\n")
        said = refused(archive(folder, tmp_path / "model.nemo"), tmp_path, ConfigError)
        assert (
            f"is a network of Megatron-core's ({name}), which is not read; export it to a Hugging Face folder" in said
        )
    (folder / "model_weights" / "model.decoder.layers").mkdir(parents=True)
    (folder / "model_weights" / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    for source in (archive(folder, tmp_path / "model.nemo"), folder):
        said = refused(source, tmp_path)
        assert said.startswith(f"{source} keeps its weights as a distributed checkpoint of Megatron-core")


def test_the_command_line_says_it_in_a_sentence(tmp_path):
    (tmp_path / "cut.nemo").write_bytes(b"cut")
    for arguments in (("convert", tmp_path / "cut.nemo", "-o", tmp_path / "out"),
                      ("generate", "a", "--model", tmp_path / "cut.nemo")):  # fmt: skip
        result = call(*arguments)
        assert result.exit_code == 2 and result.stderr.startswith(f"vlm: {tmp_path / 'cut.nemo'} is no NeMo archive")
    (tmp_path / "model.txt").write_bytes(b"x")
    said = call("convert", tmp_path / "model.txt", "-o", tmp_path / "out").stderr
    assert "is a file that is no model; give" in said and ".nemo archive" in said
