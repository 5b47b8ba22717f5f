"""What a config.pbtxt says: each word of FasterTransformer's and Triton's honoured, told of, or refused by name."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.kits.servers import ft_kit
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.build.locate import packaged_models
from vlm.config import BuildConfig
from vlm.errors import ConfigError, ModelNotFoundError, VlmWarning
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.core.errors import status_of
from vlm_app.server.repository import pbtxt
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.loading import Loader
from vlm_app.server.repository.repository import Entry, scan
from vlm_app.server.repository.served_config import ServedConfig


def read(text: str) -> ServedConfig:
    return ServedConfig.from_proto(pbtxt.parse(text, "m/config.pbtxt"), "m/config.pbtxt")


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}'


def test_published_configurations_are_read_as_they_are():
    t5 = read(ft_kit.t5(model_checkpoint_path="./all_models/t5/fastertransformer/1/1-gpu/"))
    assert (t5.options.build, t5.options.runtime, t5.options.encoder_only) == (
        {"dtype": "float16", "tp_size": 1, "pp_size": 1},
        {},
        False,
    )
    assert t5.families == ("t5",) and t5.checkpoint == "./all_models/t5/fastertransformer/1/1-gpu/"
    assert t5.datatypes["output_ids"] == "INT32" and "max_batch_size is 1024" in t5.notes[0]
    encoder = read(ft_kit.t5_encoder())
    assert encoder.options.encoder_only and "t5-encoder" in encoder.families
    gpt = read(ft_kit.gpt())
    assert gpt.datatypes["output_ids"] == "UINT32" and "context_embeddings" in gpt.notes[-1]
    assert gpt.families == ("gpt2", "opt") and not gpt.options.encoder_only


HONOURED = {
    "data_type fp32": (parameter("data_type", "fp32"), {"dtype": "float32"}, {}),
    "data_type bf16": (parameter("data_type", "bf16"), {"dtype": "bfloat16"}, {}),
    "max_seq_len": (parameter("max_seq_len", "64"), {"max_seq_len": 64}, {}),
    "threads": (parameter("threads", "2"), {}, {"threads": 2}),
    "adapters": (parameter("lora", "a=x, b=y/z"), {}, {"lora": ("a=x", "b=y/z")}),
    "a GPU": ("instance_group { kind: KIND_GPU gpus: 1 }", {}, {"device": "cuda:1"}),
    "a GPU of FasterTransformer's": (
        'backend: "fastertransformer" instance_group { kind: KIND_GPU gpus: 1 }',
        {},
        {"device": "cuda:1"},
    ),
    "FasterTransformer's CPU": ('backend: "fastertransformer" instance_group { kind: KIND_CPU }', {}, {}),
    "the CPU": ("instance_group { kind: KIND_CPU }", {}, {"device": "cpu"}),
    "ranks": (parameter("tensor_para_size", "4"), {"tp_size": 4}, {}),
    "stages": (parameter("pipeline_para_size", " 2 ") + parameter("tensor_para_size", ""), {"pp_size": 2}, {}),
    "neutral": (parameter("int8_mode", "0") + parameter("is_fuse_QKV", "1"), {}, {}),
}


@pytest.mark.parametrize(("text", "build", "runtime"), HONOURED.values(), ids=HONOURED)
def test_what_is_honoured(text, build, runtime):
    options = read(f"max_batch_size: 4 {text}").options
    assert (options.build, options.runtime) == ({"max_batch_size": 4} | build, runtime)


REFUSED = {
    "tensor_para_size": (parameter("tensor_para_size", "0"), "tensor_para_size is '0'; it must be a number of ranks"),
    "pipeline_para_size": (parameter("pipeline_para_size", "two"), "pipeline_para_size is 'two'; it must be a number"),
    "data_type": (parameter("data_type", "fp8"), "data_type is 'fp8'; allowed are fp32, fp16, bf16"),
    "model_type": (parameter("model_type", "GPT-J"), "model_type is 'GPT-J'; allowed are T5, T5-Encoder, GPT"),
    "int8_mode": (parameter("int8_mode", "1"), "int8_mode is '1'; write 0"),
    "is_sparse": (parameter("is_sparse", "1"), "is_sparse is '1'; write 0"),
    "enable_custom_all_reduce": (parameter("enable_custom_all_reduce", "yes"), "enable_custom_all_reduce is 'yes'"),
    "a parameter": (parameter("vocab_size", "9"), "vocab_size is no parameter here; there are"),
    "a misspelt parameter": (parameter("tensor_para_sise", "1"), r"here \(is it tensor_para_size"),
    "an ensemble": ('platform: "ensemble" input { name: "INPUT_0" }', "leave its folder out, and its engine is served"),
    "no configuration": ("output {{", r"no model configuration of Triton's: .*got \{\.$"),
    "a number": (parameter("threads", "many"), "the parameter threads is 'many'; it must be a number"),
    "adapters": (parameter("lora", "x,y=z"), "lora is 'x', it must be NAME=FOLDER"),
    "an input": ('input { name: "INPUT_0" }', "input names INPUT_0, which no model here has"),
    "an output": ('output { name: "OUTPUT_0" }', "output names OUTPUT_0, which no model here has"),
    "a batch input": ('batch_input { target_name: "x" }', "batch_input names x"),
    "a type": ('output { name: "output_ids" data_type: TYPE_FP32 }', "output_ids is declared as FP32; it must be"),
    "a backend": ('backend: "onnxruntime"', "backend is 'onnxruntime'; it must be fastertransformer, python"),
    "a platform": ('platform: "pytorch_libtorch"', "platform is 'pytorch_libtorch'"),
    "sequences": ("sequence_batching { direct { } }", "sequence_batching is set; no state is kept"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_by_name(text, says):
    with pytest.raises(ConfigError, match=says) as told:
        read(text)
    assert str(told.value).endswith(".") and "\n" not in str(told.value)


def test_all_reasons_are_told_at_once():
    with pytest.raises(ConfigError, match=r"^m/config\.pbtxt: sequence_batching.*int8_mode.*tensor_para_size.*\.$"):
        read(f"sequence_batching {{ }} {parameter('tensor_para_size', '-2')} {parameter('int8_mode', '2')}")


NOTED = {
    "instances": ("instance_group { count: 2 }", "instance_group asks for several instances"),
    "gpus": ("instance_group { kind: KIND_GPU gpus: [0, 1] }", "the first is used"),
    "rates": ("instance_group { rate_limiter { priority: 2 } }", "instance_group.rate_limiter is not applied"),
    "warm-up": ("model_warmup { name: 'w' }", "model_warmup is not applied: .* --warm-up"),
    "cache": ("response_cache { enable: true }", "response_cache is not applied"),
    "optimization": ("optimization { priority: PRIORITY_MAX }", "optimization is not applied"),
    "versions": ("version_policy { all { } }", "version_policy asks for several versions: the latest"),
    "two versions": ("version_policy { specific { versions: [1, 2] } }", "version_policy asks for several"),
    "priorities": ("dynamic_batching { priority_levels: 3 default_priority_level: 1 }", "dynamic_batching.priority"),
    "agents": ("model_repository_agents { agents { name: 'checksum' } }", "model_repository_agents is not applied"),
}  # fmt: skip
SILENT = ("dynamic_batching { max_queue_delay_microseconds: 5 preferred_batch_size: 4 preserve_ordering: true }",
          "version_policy { latest { num_versions: 1 } }", "instance_group { count: 1 kind: KIND_AUTO }",
          "model_transaction_policy { decoupled: true }", 'name: "m" max_batch_size: 2')  # fmt: skip


@pytest.mark.parametrize(("text", "says"), NOTED.values(), ids=NOTED)
def test_what_is_not_applied_is_told_of(text, says):
    notes = read(text).notes
    assert any(re.search(says, note) for note in notes)
    assert all(note.startswith("m/config.pbtxt: ") and note.endswith(".") for note in notes)


@pytest.mark.parametrize("text", SILENT)
def test_what_changes_nothing_is_silent(text):
    assert read(text).notes == ()


def test_a_field_that_is_unknown_is_told_of():
    with pytest.warns(VlmWarning, match='m/config.pbtxt: a field is unknown here and not applied: .*"speed"'):
        assert read("max_batch_size: 3 speed { fast: true }").options.build["max_batch_size"] == 3


def repositories(folder) -> Repositories:
    found = Repositories([str(folder)], Loader(LoadOptions(runtime={"device": "cpu"})))
    found.scan()
    return found


def test_where_the_model_is_taken_from(tmp_path):
    path = packaged_models()["mini-t5"]
    (tmp_path / "models" / "inner" / "1" / "t5").mkdir(parents=True)
    (tmp_path / "models" / "inner" / "1" / "t5" / "config.json").write_text("{}")
    (tmp_path / "models" / "inner" / "1" / "other").mkdir()
    (tmp_path / "models" / "inner" / "1" / "other" / "notes.txt").write_text("")
    (tmp_path / "models" / "inner" / "config.pbtxt").write_text(ft_kit.t5())
    ft_kit.repository(tmp_path / "models", away=ft_kit.t5(model_checkpoint_path=str(path)),
                      gone=ft_kit.t5(model_checkpoint_path="/nowhere/1-gpu"),
                      long=ft_kit.t5(model_checkpoint_path="x" * 300))  # fmt: skip
    found = scan(str(tmp_path / "models"))
    assert found["inner"].fetched() == tmp_path / "models" / "inner" / "1" / "t5"
    assert isinstance(found["away"], Entry) and found["away"].fetched() == path and found["away"].version == "1"
    with pytest.raises(ConfigError, match=r"gone/config\.pbtxt: model_checkpoint_path is /nowhere/1-gpu, which is not"):
        repositories(tmp_path / "models").load("gone")
    with pytest.raises(ConfigError, match=r"long/config\.pbtxt: model_checkpoint_path is x{300}, which is not there"):
        repositories(tmp_path / "models").load("long")


def test_an_engine_that_is_damaged_is_a_mistake_of_who_names_it(tmp_path):
    (tmp_path / "cut" / "1").mkdir(parents=True)
    manifest = {"format_version": 1, "vlm_version": "0", "roles": {}}
    (tmp_path / "cut" / "1" / "manifest.json").write_text(json.dumps(manifest))
    found = repositories(tmp_path)
    with pytest.raises(ConfigError, match=r"manifest\.json was edited or damaged after the build") as caught:
        found.load("cut")
    assert status_of(caught.value) == 400 and str(found.entries["cut"]) == str(caught.value)


def test_what_is_refused_comes_before_what_is_missing(tmp_path):
    found = scan(str(ft_kit.repository(tmp_path, gptj=ft_kit.gpt(model_type="GPT-J"))))
    assert "model_type is 'GPT-J'; allowed are T5, T5-Encoder, GPT" in str(found["gptj"])


def test_what_its_converter_wrote_is_refused_with_what_to_give(tmp_path):
    for name in ("gone/1/1-gpu", "path"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.ini").write_text("[encoder]\n_name_or_path = google-t5/t5-small\n")
        (tmp_path / name / "model.shared.weight_T.bin").write_bytes(b"0000")
    (tmp_path / "gone" / "config.pbtxt").write_text(ft_kit.t5(data_type="fp32"))
    models = ft_kit.repository(tmp_path / "models", away=ft_kit.t5(model_checkpoint_path=str(tmp_path / "path")))
    (tmp_path / "gone").rename(models / "inside")
    for name in ("inside", "away"):
        with pytest.raises(ConfigError, match=r"FasterTransformer's converter .*converted from .google-t5/t5-small.\."):
            repositories(models).load(name)


def test_the_model_is_what_model_type_says(tmp_path):
    path = str(packaged_models()["mini-t5"])
    models = ft_kit.repository(tmp_path, wrong=ft_kit.gpt(model_checkpoint_path=path, data_type="fp32"))
    with pytest.raises(ConfigError, match=r"model_type is GPT, which stands for gpt2, opt, .* family t5;"):
        repositories(models).load("wrong")


def ranks(tp: str, pp: str, path) -> str:
    """T5's configuration of a model that lies elsewhere, for so many ranks."""
    sizes = {"tensor_para_size": tp, "pipeline_para_size": pp}
    return ft_kit.t5(model_checkpoint_path=str(path), data_type="fp32", **sizes)


def test_an_engine_for_other_ranks_is_refused_with_its_sizes(tmp_path):
    checkpoint = Checkpoint.open(engine_dir(tiny.t5(), tmp_path).path.parent / "checkpoint")
    path = build_engine(checkpoint, tmp_path / "split", BuildConfig(tp_size=4, encoder_tp_size=2)).path
    sizes = {"one": ("1", "1"), "both": ("2", "3"), "stages": ("4", "2"), "stages_alone": ("", "3")}
    models = ft_kit.repository(tmp_path / "models", **{name: ranks(*each, path) for name, each in sizes.items()})
    for name, (tp, pp) in sizes.items():
        with pytest.raises(ConfigError) as told:
            repositories(models).load(name)
        told_of = {f"tensor_para_size is {tp}": tp in ("1", "2"), f"pipeline_para_size is {pp}": pp != "1"}
        said = ", ".join(words for words, differs in told_of.items() if differs)
        has, rebuild = "was built for tp_size 4, pp_size 1", f"rebuild it: vlm build MODEL -o {path} "
        sentence, _, options = str(told.value).partition(rebuild)
        assert sentence.endswith(f"{name}/config.pbtxt: {said}, and the engine {path} {has}; write these sizes, or ")
        assert (f"--tp-size {tp or 4}" in options, f"--pp-size {pp}" in options) == (tp != "1", pp != "1")
        assert ("--encoder-tp-size 2" in options) == (tp != "1")  # which does not divide 1


def test_a_folder_is_built_for_the_ranks_that_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    tiny.t5().save_pretrained(tmp_path / "hf")
    found = scan(str(ft_kit.repository(tmp_path / "models", t5=ranks("2", "", tmp_path / "hf"))))["t5"]
    assert isinstance(found, Entry)
    found.config.check_ranks(found.fetched(), found.where)
    engine = EngineDir.open(found.local_options().resolve(found.fetched(), "cpu"))
    assert (engine.build.tp_size, engine.build.pp_size) == (2, 1)


def test_a_line_that_is_no_configuration_is_not_repeated_whole():
    with pytest.raises(ConfigError) as caught:
        read(f'name: "m" {"x" * 100_000}\n')
    assert "is no model configuration" in str(caught.value) and len(str(caught.value)) < 1100


def test_without_a_repository_there_is_no_model_to_load():
    with pytest.raises(ModelNotFoundError, match=r"in no repository here; none was named with --model-repository\.$"):
        Repositories([], Loader(LoadOptions())).entry("x")
