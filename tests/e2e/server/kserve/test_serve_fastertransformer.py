"""FasterTransformer's published configurations served unchanged, under Triton's own client."""

from __future__ import annotations

import contextlib
import json
import urllib.request

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import T5EncoderModel

pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")

import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.server.kserve.test_serve_kserve import infer, of_ids
from tests.kits.models import tiny
from tests.kits.servers import ft_kit
from tests.kits.servers.server_kit import alone, serving
from vlm.build.locate import packaged_models
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.loading import Loader

TEXTS = ["translate English to German: The old ship is small.", "translate English to German: 3 May 2019"]
STATES_IN_BF16 = ('"output_hidden_state" data_type: TYPE_FP32', '"output_hidden_state" data_type: TYPE_BF16')
PATHS = {name: str(packaged_models()[f"mini-{name}"]) for name in ("t5",)}


@contextlib.contextmanager
def served(root):
    repositories = Repositories([str(root)], Loader(LoadOptions(runtime={"device": "cpu"})))
    repositories.scan()
    with (
        serving({name: repositories.load(name) for name in repositories.entries}, repositories) as found,
        triton.InferenceServerClient(found.address, network_timeout=1800) as client,
    ):
        yield found, client


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A server of T5, T5-Encoder of a whole model and of one saved alone, and GPT; and Hugging Face's encoder."""
    folder = tmp_path_factory.mktemp("ft")
    tiny.gpt2(seed=1).save_pretrained(folder / "gpt2")
    tiny.t5(seed=4).save_pretrained(folder / "whole")
    encoder = T5EncoderModel.from_pretrained(folder / "whole", attn_implementation="eager").eval()
    encoder.save_pretrained(folder / "encoder")
    models = ft_kit.repository(
        folder / "models",
        t5=ft_kit.t5(model_checkpoint_path=PATHS["t5"], data_type="fp32"),
        encoder=ft_kit.t5_encoder(model_checkpoint_path=str(folder / "whole"), data_type="fp32"),
        alone=ft_kit.t5_encoder(model_checkpoint_path=str(folder / "encoder"), data_type="fp16"),
        texts=ft_kit.t5_encoder(model_checkpoint_path=PATHS["t5"], data_type="bf16"),
        brain=ft_kit.t5_encoder(model_checkpoint_path=PATHS["t5"], data_type="bf16").replace(*STATES_IN_BF16),
        gpt=ft_kit.gpt(model_checkpoint_path=str(folder / "gpt2"), data_type="fp32"),
    )
    with served(models) as (found, client):
        yield found, client, encoder


def words(*ids: int) -> np.ndarray:
    """One word, as FasterTransformer's word_list.py writes it."""
    return np.array([[[*ids], [len(ids)] + [-1] * (len(ids) - 1)]], np.int32)


def test_t5_gives_int32_as_its_configuration_says(subject):
    _, client, _ = subject
    t5 = alone("mini-t5")
    asked = of_ids(t5, TEXTS, max_output_len=np.uint32(40), beam_width=np.uint32(2), runtime_top_k=np.uint32(1))
    found = infer(client, "t5", asked, outputs=["output_ids", "sequence_length", "cum_log_probs"])
    assert (found["output_ids"].dtype, found["sequence_length"].dtype) == (np.int32, np.int32)
    for row, text in enumerate(TEXTS):
        best = t5.generate(text=text, max_new_tokens=40, num_beams=2)
        assert found["output_ids"][row, 0, : found["sequence_length"][row, 0]].tolist() == best.token_ids
    shown = {each["name"]: each["datatype"] for each in client.get_model_metadata("t5")["outputs"]}
    assert (shown["output_ids"], shown["sequence_length"]) == ("INT32", "INT32")
    config = {each["name"]: each["data_type"] for each in client.get_model_config("t5")["output"]}
    assert config["output_ids"] == "TYPE_INT32"


def test_stop_words_end_beams_and_rows_have_widths_of_their_own(subject):
    _, client, _ = subject
    t5 = alone("mini-t5")
    best = t5.generate(text=TEXTS[0], num_beams=3).token_ids
    asked = of_ids(t5, TEXTS[:1], beam_width=np.uint32(3))
    found = infer(client, "t5", asked | {"stop_words_list": words(*best[1:3])})
    want = t5.generate(text=TEXTS[0], num_beams=3, num_return_sequences=3, stop_words_ids=(tuple(best[1:3]),))
    for beam, output in enumerate((want, *want.alternatives)):
        assert found["output_ids"][0, beam, : found["sequence_length"][0, beam]].tolist() == output.token_ids
    assert want.finish_reason == "stop" and want.token_ids[-2:] == best[1:3]
    both = of_ids(t5, TEXTS) | {"beam_width": np.array([[3], [1]], np.uint32)}
    mixed = infer(client, "t5", both)
    assert mixed["output_ids"].shape[:2] == (2, 3) and mixed["sequence_length"][1].tolist()[1:] == [0, 0]
    greedy = t5.generate(text=TEXTS[1]).token_ids
    assert mixed["output_ids"][1, 0, : mixed["sequence_length"][1, 0]].tolist() == greedy


def test_gpt_gives_uint32_and_the_lengths_of_its_prompts(subject):
    _, client, _ = subject
    asked = {"input_ids": np.array([[5, 6, 7, 8], [9, 4, 0, 0]], np.uint32)}
    asked |= {"input_lengths": np.array([[4], [2]], np.uint32), "request_output_len": np.array([[5], [5]], np.uint32)}
    found = infer(client, "gpt", asked)
    assert (found["output_ids"].dtype, found["response_input_lengths"].dtype) == (np.uint32, np.int32)
    assert found["response_input_lengths"].tolist() == [[4], [2]] and found["output_ids"][1, 0, :2].tolist() == [9, 4]
    flags = {"is_return_context_embeddings": np.zeros((2, 1), bool), "request_prompt_type": np.zeros((2, 1), np.uint32)}
    assert infer(client, "gpt", asked | flags)["output_ids"].tolist() == found["output_ids"].tolist()


REFUSED = {
    "is_return_context_embeddings": (np.ones((1, 1), bool), "context embeddings are not given"),
    "request_prompt_type": (np.full((1, 1), 2, np.uint32), "rows of request_prompt_embedding stand before the ids"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_that_it_cannot_honour_are_refused_by_name(subject, name):
    _, client, _ = subject
    array, says = REFUSED[name]
    with pytest.raises(InferenceServerException, match=f"input {name} is not taken here: {says}"):
        infer(client, "gpt", {"input_ids": np.array([[5, 6]], np.uint32), name: array})


def batch(ids: list[list[int]]) -> dict[str, np.ndarray]:
    table = np.zeros((len(ids), max(map(len, ids)) + 2), np.uint32)
    for row, own in zip(table, ids, strict=True):
        row[: len(own)] = own
    return {"input_ids": table, "sequence_length": np.array([[len(x)] for x in ids], np.uint32)}


@pytest.mark.parametrize(("name", "dtype", "atol"), [("encoder", np.float32, 1e-4), ("alone", np.float16, 2e-2)])
def test_an_encoder_gives_states_and_attentions(subject, name, dtype, atol):
    found, client, encoder = subject
    ids = tiny.texts(encoder, (5, 2, 7))
    asked = batch(ids)
    plain = infer(client, name, asked)
    assert plain.keys() == {"output_hidden_state"} and plain["output_hidden_state"].dtype == dtype
    both = infer(client, name, asked | {"is_return_attentions": np.ones((3, 1), bool)})
    states, weights = both["output_hidden_state"], both["output_attentions"]
    assert states.shape == (3, 9, 32) and weights.shape == (3, 2, 4, 9, 9) and weights.dtype == dtype
    for row, own in enumerate(ids):
        with torch.no_grad():
            want = encoder(torch.tensor([own]), output_attentions=True)
        n = len(own)
        np.testing.assert_allclose(states[row, :n], want.last_hidden_state[0], atol=atol)
        np.testing.assert_allclose(weights[row, :, :, :n, :n], torch.cat(want.attentions), atol=atol)
        assert not states[row, n:].any() and not weights[row, :, :, n:].any() and not weights[row, ..., n:].any()
    pipeline = found.service(name).pipeline
    held = sum(p.numel() for p in pipeline.llm.encoders.encoder.parameters())
    assert held == sum(p.numel() for p in encoder.parameters()) and not hasattr(pipeline.llm, "executor")


def test_an_encoder_in_bfloat16_gives_it_where_that_is_declared(subject):
    """Else FP32, as JSON has no BF16."""
    _, client, _ = subject
    asked = batch([[5, 6, 1]]) | {"is_return_attentions": np.ones((1, 1), bool)}
    wide, own = infer(client, "texts", asked), infer(client, "brain", asked)
    for name in ("output_hidden_state", "output_attentions"):
        assert (wide[name].dtype, own[name].dtype) == (np.float32, ml_dtypes.bfloat16)
        np.testing.assert_array_equal(own[name], wide[name].astype(ml_dtypes.bfloat16))
    shown = {each["name"]: each["datatype"] for each in client.get_model_metadata("brain")["outputs"]}
    assert set(shown.values()) == {"BF16"}
    with pytest.raises(InferenceServerException, match="output_hidden_state is BF16, of which JSON has no values"):
        infer(client, "brain", asked, binary=False, outputs=["output_hidden_state"])


def test_both_names_of_the_states_are_known(subject):
    _, client, _ = subject
    asked = batch([[5, 6, 1]])
    names = ["output_hidden_states", "output_hidden_state", "output_attentions"]
    got = infer(client, "encoder", asked, outputs=names)
    assert list(got) == names and (got[names[0]] == got[names[1]]).all()
    shown = client.get_model_metadata("encoder")
    assert [each["name"] for each in shown["outputs"]] == ["output_hidden_state", "output_attentions"]
    assert [each["name"] for each in shown["inputs"]] == [
        "input_ids", "sequence_length", "is_return_attentions", "lora_task_uids",
    ]  # fmt: skip


def test_an_encoder_takes_texts_and_gives_embeddings_and_writes_nothing(subject):
    found, client, _ = subject
    text = triton.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[TEXTS[0].encode()]], object))
    states = client.infer("texts", [text]).as_numpy("output_hidden_state")
    want = alone("mini-t5").encode({"text": TEXTS[0]}).last_hidden_state
    assert states.dtype == np.float32 and states.shape[1:] == tuple(want.shape)
    post = lambda path, body: urllib.request.Request(  # noqa: E731
        f"{found.url}{path}", json.dumps({"model": "texts", **body}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(post("/v1/embeddings", {"input": TEXTS})) as answer:
        assert len(json.load(answer)["data"]) == 2
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(post("/v1/completions", {"prompt": TEXTS[0]}))
    assert refused.value.code == 400 and b"an encoder alone, which writes no text" in refused.value.read()
    with urllib.request.urlopen(f"{found.url}/metrics") as shown:
        assert b'vlm_running_outputs{model="t5"}' in shown.read()


MISTAKES = {
    "nothing": ({}, "there is nothing to encode; give input_ids, or text_input"),
    "a name": ({"input_ids": np.ones((1, 2), np.uint32), "beam_width": np.ones((1, 1), np.uint32)}, "beam_width is no"),
    "a misspelt name": ({"input_id": np.ones((1, 2), np.uint32)}, "input_id is no input .*is it input_ids"),
    "a length": (batch([[5, 6, 1]]) | {"sequence_length": np.array([[9]], np.uint32)}, "sequence_length is 9"),
    "an id": (batch([[5, 6000, 1]]), "outside the vocabulary"),
    "ia3": (batch([[5, 1]]) | {"ia3_tasks": np.zeros((1, 1), np.int32)}, "there is no adapter 0: none is loaded"),
    "too long": ({"input_ids": np.ones((1, 600), np.uint32)}, "600 rows .tokens., the engine was built for 512"),
    "attentions": ({"input_ids": np.ones((200, 512), np.uint32), "is_return_attentions": np.ones((200, 1), bool)},
                   "attentions of 200 rows of 512 tokens take 1,600 MiB, 512 is allowed"),
    "padding": ({"input_ids": np.ones((4096, 5000), np.uint8), "sequence_length": np.ones((4096, 1), np.uint32)},
                "hidden states of 4096 rows of 5000 tokens take .* MiB, 2,048 is allowed; ask for fewer"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_an_encoders_mistakes_get_one_sentence(subject, case):
    _, client, _ = subject
    arrays, says = MISTAKES[case]
    with pytest.raises(InferenceServerException, match=says):
        infer(client, "encoder", arrays or {"is_return_attentions": np.ones((1, 1), bool)})
