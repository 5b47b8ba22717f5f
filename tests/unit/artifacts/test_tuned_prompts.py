"""Tuned prompts of NeMo's archives: converted to a folder, read, and refused in a sentence each."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from tests.kits.cli_kit import call, one_sentence
from tests.kits.models.lora_kit import adapter_folder
from tests.kits.publications.nemo_kit import GPTNext, archive
from tests.kits.publications.nemo_t5_kit import tuned_prompts
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.prompt_tables import PromptTables
from vlm.build.from_model import convert_model
from vlm.build.store import resolve
from vlm.errors import CheckpointError, ConfigError, InputError, VlmWarning
from vlm.processing.inputs.fields import read_table
from vlm.processing.processor import Processor
from vlm.requests import prompt_table
from vlm.requests.sampling_params import SamplingParams

TABLES = {"squad": torch.randn(4, 32), "a/../b": torch.randn(2, 32)}


@pytest.mark.parametrize(("options", "data"), [
    ({}, ("<extra_id_0>", True)), ({"encoder": True}, ("<extra_id_0>", True)), ({"flat": True}, ("<extra_id_0>", True)),
    ({"data": {"add_sentinel_to_input": False, "add_eos": False}}, ("", False)),
    ({"target": "nemo.MegatronGPTPromptLearningModel"}, ("", False)), ({"data": None}, ("<extra_id_0>", True)),
])  # fmt: skip
def test_an_archive_becomes_a_folder(options, data, tmp_path):
    path = archive(tuned_prompts(tmp_path / "content", TABLES, **options), tmp_path / "prompts.nemo")
    result = call("convert", path, "-o", tmp_path / "tables")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'tables'}\n"), result.stderr
    assert sorted(file.name for file in (tmp_path / "tables").iterdir()) == ["0.npy", "1.npy", "tasks.json"]
    tables = PromptTables.open(tmp_path / "tables")
    assert tables.names == list(TABLES) and len(tables) == 2
    for name, number in (("squad", 0), ("a/../b", 1)):
        found = tables.find(name)
        assert found is tables.find(number) and found is tables.find(str(number))
        torch.testing.assert_close(torch.from_numpy(found.rows), TABLES[name])
        assert (found.suffix, found.ends) == data
    assert tables.find("boolq") is None and tables.find(2) is None and tables.find("9" * 5000) is None
    assert json.loads((tmp_path / "tables" / "tasks.json").read_text())["base"] == "/models/t5.nemo"
    np.testing.assert_array_equal(np.load(tmp_path / "tables" / "1.npy"), TABLES["a/../b"].numpy())


def test_half_precision_and_several_ranks(tmp_path):
    folder = tuned_prompts(tmp_path / "content", {"squad": TABLES["squad"].bfloat16()})
    place = folder / "mp_rank_00"
    place.mkdir()
    (folder / "model_weights.ckpt").rename(place / "model_weights.ckpt")
    convert_model(folder, tmp_path / "tables")
    [prompt] = PromptTables.open(tmp_path / "tables").prompts
    assert prompt.rows.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(prompt.rows), TABLES["squad"].bfloat16().float())


TABLE = torch.randn(4, 32)
FT_TABLE = "inference_table.prompt_table.taskname.prompt_embeddings.weight"
TRAIN = {"data": {"train_ds": {"add_bos": True, "add_sep": True}}}
EMPTY = {"embedding.weight": (0, 32), "first.weight": (8, 32), "first.bias": 8, "second.weight": (32, 8),
         "second.bias": 32}  # fmt: skip
THIN = {"embedding.weight": (10_000, 1), "first.weight": (1, 1), "first.bias": 1, "second.weight": (10_000, 1),
        "second.bias": 10_000}  # fmt: skip
LEARNED = {"position_embedding_type": "learned_absolute"}


@pytest.mark.parametrize("name", ["inference_table", FT_TABLE])
def test_rows_of_peft_that_were_made_before(name, tmp_path):
    content = GPTNext().unpacked_ptuning(tmp_path / "content", {name: TABLE})
    convert_model(content, tmp_path / "tables")
    [prompt] = PromptTables.open(tmp_path / "tables").prompts
    assert (prompt.name, prompt.template, prompt.suffix, prompt.ends) == ("ptuning", "{input} {output}", "", False)
    torch.testing.assert_close(torch.from_numpy(prompt.rows), TABLE)


@pytest.mark.parametrize(("layers", "more", "words"), [
    ({}, {}, "holds no rows of tuned prompts .ptuning_adapter.; give the .nemo file that NeMo wrote at the end"),
    ({"inference_table": 0 * TABLE}, {}, "holds no rows of tuned prompts"),
    ({"inference_table": TABLE.cfloat()}, {}, "holds no rows of tuned prompts"),
    ({name: torch.ones(shape) for name, shape in EMPTY.items()}, {}, "holds no rows of tuned prompts"),
    ({"inference_table": (0 * TABLE / 0).to(torch.float8_e4m3fn)}, {}, "holds NaN or infinity among its rows"),
    ({"inference_table": TABLE / 0}, {}, "holds NaN or infinity among its rows"),
    ({"inference_table": TABLE}, {"peft": {"peft_scheme": "ptuning", "p_tuning": {"virtual_tokens": 5}}},
     "holds 4 rows of tuned prompts, its virtual_tokens is 5"),
    ({"embedding.weight": TABLE, "first.weight": TABLE, "first.bias": TABLE[0], "second.weight": TABLE,
      "second.bias": TABLE[0]}, {}, "the layers that make the rows do not fit each other"),
    ({name: torch.ones(shape) for name, shape in THIN.items()}, {},
     "would make 10,000 rows of up to 10,000 values; at most 67,108,864 values are made"),
    ({"inference_table": TABLE}, LEARNED, "position_embedding_type is 'learned_absolute', which here is added to the"),
    ({"inference_table": TABLE}, TRAIN, "data.train_ds.add_bos is True; data.train_ds.add_sep is True. Run them with"),
    ({"inference_table": TABLE}, {"apply_embedding_scaling": True}, "apply_embedding_scaling is True"),
    ({"inference_table": TABLE}, {"peft": {"peft_scheme": "lora,ptuning"}}, "an adapter alone .lora,ptuning."),
])  # fmt: skip
def test_rows_of_peft_that_cannot_be_used(layers, more, words, tmp_path):
    content = GPTNext().unpacked_ptuning(tmp_path / "content", layers, **more)
    with pytest.raises((CheckpointError, ConfigError), match=words):
        convert_model(content, tmp_path / "tables")
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize("make", [
    lambda folder: tuned_prompts(folder, TABLES),
    lambda folder: GPTNext().unpacked_ptuning(folder, {"inference_table": TABLE}),
])  # fmt: skip
def test_inspect_says_how_an_archive_of_prompts_is_used(make, tmp_path, monkeypatch):
    folder = make(tmp_path / "content")
    path, out = archive(folder, tmp_path / "squad.nemo"), "squad.prompts"
    monkeypatch.setattr("llm_engines.converters.nemo.weights.read_nested_pickle", None)  # no weights are read
    described = json.loads(call("inspect", path, "--json").stdout)
    assert described == {
        "kind": "nemo archive of tuned prompts, no model but what is given beside one", "path": str(path),
        "next": f"vlm convert {path} -o {out}", "then": f"vlm run --text TEXT --model MODEL --prompt-table {out}",
    }  # fmt: skip
    assert "nemo folder of tuned prompts" in call("inspect", folder).stdout


def test_inspect_tells_of_a_number_of_thousands_of_digits_in_one_sentence(tmp_path):
    folder = GPTNext().unpacked_ptuning(tmp_path / "content", {"inference_table": TABLE})
    with (folder / "model_config.yaml").open("a") as config:
        config.write(f"\ntarget: 0x{'f' * 9000}\n")
    assert "holds a value that no model has" in one_sentence(call("inspect", folder))
    assert "holds a value that no model has" in one_sentence(call("inspect", archive(folder, tmp_path / "a.nemo")))


def test_rows_of_peft_are_no_model(tmp_path):
    path = archive(GPTNext().unpacked_ptuning(tmp_path / "content", {"inference_table": TABLE}), tmp_path / "p.nemo")
    told = one_sentence(call("run", "--raw-prompt", "a", "--model", path))
    assert "tuned prompts alone" in told and "give that with --prompt-table, --model being /models/gpt.nemo" in told


def test_rows_that_stand_elsewhere_in_a_template(tmp_path):
    template = {"taskname": "squad", "prompt_template": "<|VIRTUAL_PROMPT_0|> {a} <|VIRTUAL_PROMPT_1|>",
                "total_virtual_tokens": 4, "virtual_token_splits": [2, 2]}  # fmt: skip
    folder = tuned_prompts(tmp_path / "content", {"squad": TABLES["squad"]}, task_templates=[template])
    with pytest.warns(VlmWarning, match="the rows of the task squad do not all stand before its texts"):
        convert_model(folder, tmp_path / "tables")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert_model(tuned_prompts(tmp_path / "other", TABLES), tmp_path / "others")


def test_templates_that_were_not_tuned(tmp_path):
    """NeMo's configurations may list them; numbers are those of the tasks with rows."""
    templates = [{"taskname": name, "prompt_template": ""} for name in ("boolq", "squad", "rte")]
    folder = tuned_prompts(tmp_path / "content", {"squad": TABLES["squad"]}, task_templates=templates)
    sentence = "the archive has no rows of boolq, rte, which its model_config.yaml names; it has those of squad"
    with pytest.warns(VlmWarning, match=sentence):
        convert_model(folder, tmp_path / "tables")
    assert PromptTables.open(tmp_path / "tables").names == ["squad"]
    result = call("convert", archive(folder, tmp_path / "prompts.nemo"), "-o", tmp_path / "others")
    assert result.exit_code == 0 and sentence in result.stderr
    assert result.stderr.splitlines()[-1] == "task 0: squad, 4 rows"


def test_inspect_says_which_tasks_a_folder_has(tmp_path):
    convert_model(tuned_prompts(tmp_path / "content", TABLES), tmp_path / "tables")
    found = json.loads(call("inspect", tmp_path / "tables", "--json").stdout)
    assert found["tasks"] == {"squad": "4 rows", "a/../b": "2 rows"} and found["width"] == 32
    assert "--tasks squad" in call("inspect", tmp_path / "tables").stdout


def test_shorter_tasks_of_a_file_end_in_zeros(tmp_path):
    """As TensorRT-LLM's nemo_prompt_convert.py writes them."""
    rows = np.zeros((3, 4, 8), np.float32)
    rows[0], rows[1, :2, 3] = 1, 2
    np.save(tmp_path / "t.npy", rows)
    assert [len(prompt.rows) for prompt in PromptTables.open(tmp_path / "t.npy").prompts] == [4, 2, 4]


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def _saved(state):
    return lambda folder: torch.save(state, folder / "model_weights.ckpt")


KEY = "prompt_table.squad.prompt_embeddings.weight"
DAMAGE = {
    "holds no weights": lambda f: (f / "model_weights.ckpt").unlink(),
    "model_weights.ckpt is damaged or truncated":
        lambda f: (f / "model_weights.ckpt").write_bytes(b"PK\3\4" + bytes(99)),
    "model_weights.ckpt is no state dict of tensors by name": _saved({"prompt_table": {KEY: {"more": torch.ones(2)}}}),
    r"is no state dict of tensors": _saved([torch.ones(2)]),
    "holds no rows of tuned prompts .prompt_table.": _saved({"prompt_encoder": {"weight": torch.ones(2, 32)}}),
    "the end of the tuning": _saved({"prompt_table": {KEY: torch.zeros(4, 32)}}),
    "holds NaN or infinity among its rows; give finite floats, as they were tuned .squad": _saved(
        {"prompt_table": {KEY: torch.full((4, 32), torch.inf)}}),
    "the task squad has 5 rows, its total_virtual_tokens is 4": _saved(
        {"prompt_table": {KEY: torch.ones(5, 32), KEY.replace("squad", "a/../b"): torch.ones(2, 32)}}),
    "the rows of its tasks differ in width .32, 33": _saved(
        {"prompt_table": {KEY: torch.ones(4, 32), KEY.replace("squad", "a/../b"): torch.ones(2, 33)}}),
    "its task_templates are no list of tasks": lambda f: (f / "model_config.yaml").write_text(
        "virtual_prompt_style: p-tuning\ntask_templates: [{a: 1}]"),
}  # fmt: skip


@pytest.mark.parametrize("says", DAMAGE)
def test_archives_that_are_damaged_or_do_not_fit(says, tmp_path):
    folder = tuned_prompts(tmp_path / "content", TABLES)
    DAMAGE[says](folder)
    path = archive(folder, tmp_path / "prompts.nemo")
    with pytest.raises(CheckpointError, match=says) as caught:
        convert_model(path, tmp_path / "tables")
    assert str(caught.value).count("\n") == 0 and ".tmp" not in str(caught.value)
    assert not (tmp_path / "tables").exists() and not list(tmp_path.glob(".*"))


def test_nothing_in_a_file_is_run(tmp_path):
    folder = tuned_prompts(tmp_path / "content", TABLES)
    torch.save({"prompt_table": {KEY: Trap(str(tmp_path / "trapped"))}}, folder / "model_weights.ckpt")
    with pytest.raises(CheckpointError, match="could run code"):
        convert_model(folder, tmp_path / "tables")
    assert not (tmp_path / "trapped").exists()


def test_they_are_no_model_and_replace_nothing(tmp_path):
    path = archive(tuned_prompts(tmp_path / "content", TABLES), tmp_path / "prompts.nemo")
    result = call("generate", "a", "--model", path)
    assert result.exit_code == 2 and "vlm convert makes a folder of them" in result.stderr
    for options, says in {
        ("convert", path, "-o", tmp_path / "x", "--tp-size", 2): "tuned beside a model, and --tp-size is for models",
        ("generate", "a", "--model", "x", "--prompt-table", path): f"make a folder of it first: vlm convert {path} -o",
        ("summarize", "a", "--model", "mini-t5", "--lora", f"a={path}"): f"{path} is an archive; make a folder of it",
        ("convert", "mini-t5", "-o", tmp_path / "x", "--merge-lora", path): f"{path} is an archive; make a folder",
        ("convert", "mini-t5", "-o", tmp_path / "x", "--merge-lora", __file__): "is a file and no folder of a PEFT",
    }.items():
        result = call(*options)
        assert result.exit_code == 2 and says in result.stderr and not (tmp_path / "x").exists(), result.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    result = call("convert", path, "-o", tmp_path / "mine")
    assert result.exit_code == 2 and (tmp_path / "mine" / "thesis.txt").exists()
    for _ in range(2):  # an older folder of ours is replaced
        assert call("convert", path, "-o", tmp_path / "tables").exit_code == 0


@pytest.mark.parametrize(("content", "says"), [
    ("[1]", "holds a JSON list"), ("{}", "lists no tasks"), ('{"tasks": [1]}', "lists no tasks"),
    ('{"tasks": [{}, {}]}', "1.npy is missing; convert the tuned prompts again"), ("{", "no valid JSON"),
])  # fmt: skip
def test_folders_that_are_damaged(content, says, tmp_path):
    np.save(tmp_path / "0.npy", np.zeros((2, 3), dtype=np.float32))
    (tmp_path / "tasks.json").write_text(content)
    with pytest.raises(InputError, match=says):
        PromptTables.open(tmp_path)


@pytest.mark.parametrize(("config", "rows", "says"), [
    ({"peft_type": "LORA"}, torch.ones(4, 8), "is a PEFT adapter of type LORA, not of tuned prompts .PROMPT_TUNING"),
    ({}, torch.ones(1, 8), "has no prompt_embeddings of its num_virtual_tokens .2.; fetch or save it again"),
    ({"num_virtual_tokens": "2"}, torch.ones(4, 8), "has no prompt_embeddings"),
    ({}, torch.ones(16), "has no prompt_embeddings"), ({}, torch.full((2, 8), torch.nan), "holds NaN or infinity"),
])  # fmt: skip
def test_folders_of_peft_that_hold_something_else(config, rows, says, tmp_path):
    folder = adapter_folder(tmp_path / "a", {"prompt_embeddings": rows})
    settings = {"peft_type": "P_TUNING", "num_virtual_tokens": 2} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=rf"^--prompt-table X {says}"):
        PromptTables.open(folder, "--prompt-table X")


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])  # which float32 cannot hold
def test_rows_that_are_not_finite(value, tmp_path):
    rows = np.zeros((2, 3))
    rows[1, 2] = value
    (tmp_path / "tasks.json").write_text('{"tasks": [{}]}')
    np.save(tmp_path / "0.npy", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (tmp_path, tmp_path / "0.npy"):
            with pytest.raises(InputError, match=r"0.npy holds NaN or infinity among its rows; give finite floats"):
                PromptTables.open(path)
    with pytest.raises(InputError, match="the prompt table holds NaN or infinity among its rows"):
        read_table(rows)


def test_rows_of_another_width(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 3), dtype=np.float32))
    with pytest.raises(InputError, match="are rows of 3 values, this model takes rows of 32"):
        PromptTables.open(tmp_path / "x.npy").check_width(32)


@pytest.mark.parametrize("text", [{"text": "twenty-one"}, {"input_ids": [5, 6]}, {"encoder_input_ids": [5, 6]}])
def test_rows_of_a_request_are_hashed_once(text, monkeypatch):
    """A key is a pass over all of them."""
    hashed, content_key = [], prompt_table.content_key
    monkeypatch.setattr(prompt_table, "content_key", lambda *parts: hashed.append(parts) or content_key(*parts))
    engine = EngineDir.open(resolve("mini-t5"), verify=False)
    builder = Processor.from_engine(engine).request_builder
    rows = torch.randn(2, 64)
    request = builder.build({**text, "prompt_table": rows}, SamplingParams())
    assert len(hashed) == 1 and torch.equal(request.prompt_table.rows, rows)
