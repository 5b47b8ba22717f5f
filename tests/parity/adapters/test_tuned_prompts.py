"""Prompts that NeMo has tuned, beside its T5, against plain torch: by Python, the command line and Triton's client."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PromptEncoderConfig, PromptTuningConfig, get_peft_model

import vlm
from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.publications.nemo_kit import GPTNext, archive, gpt2_files
from tests.kits.publications.nemo_t5_kit import NemoT5, bert_file, config_of, tuned_prompts
from tests.kits.servers import ft_kit
from tests.parity.decoders.test_nemo import GPT2_LIKE
from tests.parity.text.test_nemo_t5 import PIECES, TEXTS
from vlm.build.from_model import build_model, convert_model
from vlm.errors import InputError

NEW, TASKS = 8, ("boolq", "-1", "squad")
SHORT = ("--max-new-tokens", NEW, "--num-beams", 1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[NemoT5, Path, Path, dict[str, torch.Tensor]]:
    """A T5 of NeMo's, its engine, a folder of tuned prompts and their rows."""
    folder = tmp_path_factory.mktemp("tuned")
    model = NemoT5(config_of(), seed=7)
    engine = folder / "engine"
    build_model(model.unpacked(folder / "content", bert_file(folder), tokenizer=PIECES), engine)
    generator = torch.Generator().manual_seed(1)
    rows = {name: torch.randn(count, 32, generator=generator) for name, count in (("squad", 4), ("boolq", 7))}
    return model, engine, convert_model(tuned_prompts(folder / "prompts", rows), folder / "tables"), rows


def expected(tuned, pipe, text: str, task: str) -> list[int]:
    """A task's texts end with <extra_id_0> and the end token, as NeMo's T5PromptLearningDataset has them."""
    ids = pipe.tokenizer.encode(text)
    rows = tuned[3].get(task)
    return tuned[0].written(ids if rows is None else [*ids, 40, 3], NEW, ids=45, start=2, end=3, rows=rows)


def test_inputs_name_their_tasks(tuned):
    pipe = vlm.load(tuned[1], device="cpu", prompt_table=tuned[2])
    inputs = [{"text": text, "task": task} for text, task in zip(TEXTS, ("boolq", -1, 0), strict=True)]
    want = [expected(tuned, pipe, text, task) for text, task in zip(TEXTS, TASKS, strict=True)]
    assert [out.token_ids for out in pipe.generate(inputs, max_new_tokens=NEW)] == want
    plain = pipe.generate(text=TEXTS[0], max_new_tokens=NEW).token_ids
    assert pipe.generate(text=TEXTS[0], task="squad", max_new_tokens=NEW).token_ids != plain != want[0]
    ids = pipe.tokenizer.encode(TEXTS[0])
    among = [ids[0], 45, 46, *ids[1:]]  # rows of the task among the tokens
    found = pipe.generate(encoder_input_ids=among, task="squad", max_new_tokens=NEW)
    assert found.token_ids not in (want[0], plain)
    assert pipe.encode(TEXTS[0], task="boolq").last_hidden_state.shape == (7 + len(ids) + 2, 32)
    for fields, says in (
        ({"task": "mnli"}, "there is no task 'mnli'; there are squad, boolq .0 to 1., and -1: none"),
        ({"task": 2}, "there is no task 2"), ({"task": [1]}, "there is no task"),
        ({"task": 0, "prompt_table": torch.zeros(1, 32)}, "task, prompt_table were given together"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=says):
            pipe.generate(text="a", **fields)
    bare = vlm.load(tuned[1], device="cpu")
    with pytest.raises(InputError, match="no tuned prompts are loaded; load the model with prompt_table"):
        bare.generate(text="a", task="squad")


def test_a_table_of_another_model(tuned, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 31), dtype=np.float32))
    with pytest.raises(InputError, match="are rows of 31 values, this model takes rows of 32"):
        vlm.load(tuned[1], device="cpu", prompt_table=tmp_path / "x.npy")


def test_the_command_line_names_tasks(tuned):
    pipe = vlm.load(tuned[1], device="cpu")
    want = [pipe.tokenizer.decode(expected(tuned, pipe, text, task)) for text, task in zip(TEXTS, TASKS, strict=True)]
    texts = [word for text in TEXTS for word in ("--text", text)]
    asked = ("run", *texts, "--model", tuned[1], "--device", "cpu", *SHORT, "--prompt-table", tuned[2])
    for tasks in ("boolq,-1,squad", "1, -1, 0"):
        result = call(*asked, "--tasks", tasks)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines() == want
    result = call(*asked, "--tasks", "mnli")
    assert (
        result.exit_code == 2 and "--tasks names mnli; " in result.stderr and "squad, boolq (0 to 1)" in result.stderr
    )
    assert "holds 2 tasks; say which one with --tasks squad" in call(*asked).stderr


def test_lines_name_tasks(tuned, tmp_path):
    pipe = vlm.load(tuned[1], device="cpu")
    lines = [{"text": text, "task": task} for text, task in zip(TEXTS, ("boolq", -1, "squad"), strict=True)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ("translate", "--prefix", "", "--file", tmp_path / "texts.jsonl", "--model", tuned[1], "--device", "cpu")
    result = call(*asked, *SHORT, "--prompt-table", tuned[2])
    want = [pipe.tokenizer.decode(expected(tuned, pipe, text, task)) for text, task in zip(TEXTS, TASKS, strict=True)]
    assert result.stdout.splitlines() == want, result.stderr


@pytest.mark.parametrize(
    "options", [GPT2_LIKE, GPT2_LIKE | {"position_embedding_type": "rope"}], ids=["learned", "rope"]
)
def test_gpts(options, tmp_path):
    """Nothing goes after their texts."""
    model = GPTNext(seed=3, **options)
    build_model(model.unpacked(tmp_path / "content", gpt2_files(tmp_path)), tmp_path / "engine")
    rows = {"squad": torch.randn(4, 32, generator=torch.Generator().manual_seed(1))}
    prompts = tuned_prompts(tmp_path / "prompts", rows, target="nemo.MegatronGPTPromptLearningModel")
    pipe = vlm.load(tmp_path / "engine", device="cpu", prompt_table=convert_model(prompts, tmp_path / "tables"))
    inputs = [{"raw_prompt": text, "task": task} for text in TEXTS for task in ("squad", -1)]
    for one, out in zip(inputs, pipe.generate(inputs, max_new_tokens=NEW), strict=True):
        own = rows.get(one["task"])
        assert out.token_ids == model.continued(pipe.tokenizer.encode(one["raw_prompt"]), NEW, ids=42, rows=own)


def prompt_encoder(generator: torch.Generator, rows: int = 4) -> dict[str, torch.Tensor]:
    """What NeMo's PromptEncoderAdapter keeps; its table is of an older step."""
    sizes = {"embedding.weight": (rows, 6), "first.weight": (8, 6), "first.bias": (8,), "second.weight": (32, 8),
             "second.bias": (32,), "inference_table": (rows, 32)}  # fmt: skip
    return {name: torch.randn(*size, generator=generator) for name, size in sizes.items()}


@pytest.mark.parametrize("options", [
    {}, {"ranks": 2}, {"ranks": 2, "stages": 2}, {"root": "model.embedding", "mcore_gpt": True},
    {"root": "model.module.language_model"},
])  # fmt: skip
def test_p_tuning_of_peft_of_gpts(options, tmp_path):
    """The rows are what its two layers make of the embedding, as NeMo has them when it answers."""
    model = GPTNext(seed=3)
    build_model(model.unpacked(tmp_path / "content", gpt2_files(tmp_path)), tmp_path / "engine")
    layers = prompt_encoder(torch.Generator().manual_seed(1))
    content = model.unpacked_ptuning(tmp_path / "tuned", layers, **options)
    result = call("convert", archive(content, tmp_path / "tuned.nemo"), "-o", tmp_path / "tables")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, "task 0: ptuning, 4 rows"), result.stderr
    inner = torch.nn.functional.gelu(
        layers["embedding.weight"] @ layers["first.weight"].T + layers["first.bias"], approximate="tanh"
    )
    rows = inner @ layers["second.weight"].T + layers["second.bias"]
    pipe = vlm.load(tmp_path / "engine", device="cpu", prompt_table=tmp_path / "tables")
    for text in TEXTS:
        want = model.continued(pipe.tokenizer.encode(text), NEW, ids=42, rows=rows)
        assert pipe.generate(raw_prompt=text, task="ptuning", max_new_tokens=NEW).token_ids == want


@pytest.mark.parametrize(("family", "kind"), [
    ("t5", PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)),
    ("t5", PromptEncoderConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, encoder_hidden_size=8)),
    ("llama", PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=8)),
    ("gpt2", PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
])  # fmt: skip
def test_pefts_folders(family, kind, tmp_path):
    """Of an encoder-decoder PEFT saves rows for both sides, and puts the first ones before what the encoder reads.
    Where its generate has a cache, it counts no positions for the rows of a decoder alone; its forward does."""
    model = getattr(tiny, family)()
    model.save_pretrained(tmp_path / "hf")
    peft = get_peft_model(model, kind).eval()
    peft.prompt_encoder["default"].embedding.weight.data.normal_(0, 4)
    peft.save_pretrained(tmp_path / "notices")
    pipe = vlm.load(tmp_path / "hf", device="cpu", prompt_table=tmp_path / "notices", cache_dir=tmp_path / "cache")
    ids = [7, 9, 12, 5]
    tokens = peft.generate(input_ids=torch.tensor([ids]), max_new_tokens=NEW, do_sample=False, use_cache=False)[0]
    want = tokens[1 if family == "t5" else len(ids) :].tolist()
    for task in ("notices", 0):
        assert pipe.generate(input_ids=ids, task=task, max_new_tokens=NEW).token_ids == want
    assert pipe.generate(input_ids=ids, max_new_tokens=NEW).token_ids != want


def test_triton_clients_send_names_and_numbers(tuned, tmp_path):
    pytest.importorskip("tritonclient.http", reason="the extra triton is not installed")
    import httpx

    from tests.e2e.server.kserve.test_serve_fastertransformer import served
    from tests.e2e.server.kserve.test_serve_kserve import infer, of_ids
    from tests.kits.servers.server_kit import alone

    pipe, alone_t5 = vlm.load(tuned[1], device="cpu"), alone("mini-t5")
    own = ft_kit.t5(model_checkpoint_path=str(tuned[1]), data_type="fp32", prompt_table=str(tuned[2]))
    models = ft_kit.repository(tmp_path / "models", tuned=own, plain=ft_kit.t5(
        model_checkpoint_path=str(alone_t5.engine.path), data_type="fp32"))  # fmt: skip
    want = [expected(tuned, pipe, text, task) for text, task in zip(TEXTS, TASKS, strict=True)]
    with served(models) as (found, client):
        shown = {each["name"] for each in client.get_model_metadata("tuned")["inputs"]}
        assert {"task", "prompt_learning_task_name_ids"} <= shown
        assert "task" not in {each["name"] for each in client.get_model_metadata("plain")["inputs"]}
        # FasterTransformer's way: ids alone, the tokens after a text are the client's
        ids = [[*pipe.tokenizer.encode(text), 40, 3] for text in TEXTS]
        batch = {"input_ids": np.zeros((2, 20), np.uint32), "sequence_length": np.zeros((2, 1), np.uint32)}
        rows = [range(45, 52), range(45, 49)]  # where a client says where its rows stand
        for row, own_ids in enumerate(([*rows[0], *ids[0]], ids[2])):
            batch["input_ids"][row, : len(own_ids)], batch["sequence_length"][row] = own_ids, len(own_ids)
        batch["prompt_learning_task_name_ids"] = np.array([[1], [0]], np.uint32)
        batch["max_output_len"] = np.full((2, 1), NEW, np.uint32)
        outputs = infer(client, "tuned", batch)
        for row, number in enumerate((0, 2)):
            tokens = outputs["output_ids"][row, 0, : outputs["sequence_length"][row, 0]].tolist()
            assert tokens == want[number]
        for task in ({"task": "boolq"}, {"prompt_learning_task_name_ids": 1}):
            body = {"text_input": TEXTS[0], "max_output_len": NEW} | task
            answer = httpx.post(f"{found.url}/v2/models/tuned/generate", json=body).json()
            assert answer["text_output"] == pipe.tokenizer.decode(want[0])
        both = {"task": "boolq", "prompt_learning_task_name_ids": 1}
        for body, says in (({"task": "mnli"}, "there is no task 'mnli'"), (both, "were sent together")):
            answer = httpx.post(f"{found.url}/v2/models/tuned/generate", json={"text_input": "a"} | body)
            assert answer.status_code == 400 and says in answer.text
        asked = of_ids(alone_t5, ["a"], prompt_learning_task_name_ids=np.uint32(0))
        with pytest.raises(Exception, match="no tuned prompts are loaded"):
            infer(client, "plain", asked)
