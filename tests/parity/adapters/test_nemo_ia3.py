"""NeMo's (IA)³ archives become folders that PEFT loads: its T5 with them against NeMo's maths in plain torch."""

from __future__ import annotations

import json

import pytest
import torch

from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.publications.nemo_kit import archive
from tests.kits.publications.nemo_t5_kit import CONVERTED, UNTIED, NemoT5, bert_file, config_of
from tests.parity.text.test_nemo_t5 import NEW, PIECES, TEXTS, of_t5, pipeline
from vlm.build.from_model import convert_model
from vlm.errors import CheckpointError


@pytest.fixture(scope="module")
def model():
    """Hugging Face's T5, and the same as NeMo has it, with scales."""
    hf = tiny.t5(seed=2, vocab_size=60, tied=False, feed_forward_proj="gated-gelu", num_decoder_layers=3, d_kv=12,
                 relative_attention_num_buckets=8, relative_attention_max_distance=20)  # fmt: skip
    side = CONVERTED | {"ffn_hidden_size": 48}
    nemo = NemoT5(config_of(side, side | {"num_layers": 3}, **UNTIED), vocabulary=60, state=of_t5(hf))
    nemo.draw_scales()
    return hf, nemo


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_peft_computes_the_same(model, tp, pp, tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is what this is compared with")
    hf, nemo = model
    path = archive(nemo.unpacked_scales(tmp_path / "content", tp, pp), tmp_path / "ia3.nemo")
    result = call("convert", path, "-o", tmp_path / "boolq")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'boolq'}\n"), result.stderr
    settings = json.loads((tmp_path / "boolq" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "/models/t5.nemo"
    text, output = [5, 9, 11, 30, 1], [0, 7, 8, 3]
    tuned = peft.PeftModel.from_pretrained(hf, tmp_path / "boolq")
    with torch.no_grad():
        found = tuned(input_ids=torch.tensor([text]), decoder_input_ids=torch.tensor([output])).logits[0]
    assert all(x.ne(1).any() for n, x in tuned.state_dict().items() if n.endswith(".ia3_l.default")), "all are loaded"
    tuned.unload()
    torch.testing.assert_close(found, nemo.logits(text, output), atol=1e-4, rtol=1e-4)


def test_requests_name_it_beside_its_t5(tmp_path):
    nemo = NemoT5(config_of(), seed=3)
    content = nemo.unpacked(tmp_path / "t5", bert_file(tmp_path), tokenizer=PIECES)
    nemo.draw_scales()
    scales = archive(nemo.unpacked_scales(tmp_path / "scales"), tmp_path / "ia3.nemo")
    shown = json.loads(call("inspect", scales, "--json").stdout)
    assert "nemo archive of an adapter" in shown["kind"] and shown["next"] == f"vlm convert {scales} -o ia3.adapter"
    assert call("convert", scales, "-o", tmp_path / "boolq").exit_code == 0
    whole, words = archive(content, tmp_path / "t5.nemo"), shown["then"].split()[1:]
    said = {"TEXT": TEXTS[0], "MODEL": whole, "ia3.adapter": tmp_path / "boolq"}
    result = call(*(said.get(word, word) for word in words), "--max-new-tokens", 2)
    assert result.exit_code == 0, result.stderr
    pipe = pipeline(whole, tmp_path, lora=(f"boolq={tmp_path / 'boolq'}",))
    inputs = [{"text": text, "lora": name} for text in TEXTS for name in (None, "boolq")]
    found = [out.token_ids for out in pipe.generate(inputs, max_new_tokens=NEW)]
    requests = [pipe.request({"text": text}) for text in TEXTS]

    def expected() -> list[list[int]]:
        config = pipe.config
        start, end = config.decoder_start_token_id, config.eos_token_id
        texts = [[*request.source_ids] for request in requests]
        return [nemo.written(text, NEW, ids=config.vocab_size, start=start, end=end) for text in texts]

    tuned = expected()
    nemo.scales.clear()
    plain = expected()
    assert [found[0::2], found[1::2]] == [plain, tuned]
    assert all(one != other for one, other in zip(plain, tuned, strict=True)), "the scales make no difference"


def _saved(state):
    return lambda folder: torch.save(state, folder / "model_weights.ckpt")


NAME = "encoder:model.layers.0.self_attention:key_infused_adapter"
DAMAGE = {
    "holds no weights": lambda f: (f / "model_weights.ckpt").unlink(),
    "holds no scales": _saved({}),
    "holds decoder:model.layers.0.mlp:lora_adapter.scalers, which are no scales": _saved(
        {NAME: {"scalers": torch.ones(4)}, "decoder:model.layers.0.mlp:lora_adapter": {"scalers": torch.ones(4)}}),
    "holds encoder:model.layers.0.inter_attention:key_infused_adapter.scalers": _saved(
        {NAME.replace("self", "inter"): {"scalers": torch.ones(4)}}),
    "holds encoder:model.layers.0.self_attention:key_infused_adapter.scalers": _saved(
        {NAME: {"scalers": torch.ones(4, 4)}}),
    "is no state dict of tensors by name": _saved({NAME: {"scalers": [1, 2]}}),
}  # fmt: skip


@pytest.mark.parametrize("says", DAMAGE)
def test_archives_that_are_damaged_or_hold_something_else(says, model, tmp_path):
    folder = model[1].unpacked_scales(tmp_path / "content")
    DAMAGE[says](folder)
    with pytest.raises(CheckpointError, match=says) as caught:
        convert_model(archive(folder, tmp_path / "ia3.nemo"), tmp_path / "out")
    assert ".tmp" not in str(caught.value) and not (tmp_path / "out").exists()


def test_they_are_no_model(model, tmp_path):
    folder = model[1].unpacked_scales(tmp_path / "content")
    result = call("run", "--text", "a", "--model", folder)
    assert result.exit_code == 2 and "is of (IA)3 alone, which is no model; vlm convert makes" in result.stderr
    result = call("convert", folder, "-o", tmp_path / "out", "--pp-size", 2)
    assert result.exit_code == 2 and "is what was tuned beside a model, and --pp-size is for models" in result.stderr
    linear = "nemo.collections.nlp.megatron_t5_adapter_model.MegatronT5AdapterLearningModel"
    other = model[1].unpacked_scales(tmp_path / "linear", target=linear)
    said = call("convert", other, "-o", tmp_path / "out").stderr
    assert "is of a MegatronT5AdapterLearningModel; of NeMo's models GPT, T5, T0, BART are supported" in said
