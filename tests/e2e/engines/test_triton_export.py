"""`vlm export-triton`: what it writes is Triton's, and its models give what the engine gives by itself."""

from __future__ import annotations

import contextlib
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")

from tests.kits.cli_kit import call
from tests.kits.servers.server_kit import EXAMPLES, alone, load, serving, until
from tests.kits.servers.triton_kit import asked, config_of, ids_of, rows, running, streamed, texts, through
from vlm_app.server.tensors.model import INPUT_LENGTHS
from vlm_app.triton.config import READ_BACK

TEXTS = [
    "translate English to German: The old ship is small.",
    "translate English to German: 3 May 2019",
    "translate English to German: The new house is old.",
]
SCENE, SIGN = EXAMPLES / "scene1.png", "Read the sign."


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Model and options -> its repository."""
    made = {}

    def export(model: str, *options: str):
        if (model, options) not in made:
            out = tmp_path_factory.mktemp("triton") / "repository"
            result = call("export-triton", model, "-o", out, "--device", "cpu", *options)
            assert result.exit_code == 0 and result.stdout == f"{out}\n", result.stderr
            made[model, options] = out
        return made[model, options]

    return export


@pytest.fixture(scope="module")
def ensemble(exported):
    """Model -> (repository, its parts, running)"""
    with contextlib.ExitStack() as stack:
        started = {}

        def start(model: str):
            repository = exported(model)
            if model not in started:
                parts = [f"{model}-{part}" for part in ("preprocessing", "engine", "postprocessing")]
                started[model] = {name: stack.enter_context(running(repository / name)) for name in parts}
            return repository, started[model]

        yield start


def expected(text: str, **options) -> list[int]:
    return alone("mini-t5").generate(text=text, **options).token_ids


def test_ragged_requests_of_one_call_get_what_each_gets_alone(ensemble):
    engine = ensemble("mini-t5")[1]["mini-t5-engine"]
    short = {"max_output_len": np.array([[3]], np.uint32)}
    first, second, third = asked(engine, ids_of(*TEXTS[:2]), ids_of(TEXTS[2]), {**ids_of(TEXTS[0]), **short})
    assert rows(first.arrays) == [expected(text) for text in TEXTS[:2]]
    assert rows(second.arrays) == [expected(TEXTS[2])] and rows(third.arrays) == [expected(TEXTS[0])[:3]]
    logprobs = first.arrays["cum_log_probs"][1, 0]
    assert logprobs == pytest.approx(alone("mini-t5").generate(text=TEXTS[1]).cumulative_logprob, abs=1e-3)


def test_requests_of_one_call_are_in_flight_together(ensemble, monkeypatch):
    """No step is done before all have come: one after the other they never would."""
    engine = ensemble("mini-t5")[1]["mini-t5-engine"]
    llm, added = engine._model.pipeline.llm, engine._model.engine._commands
    step, seen = llm.step, []

    def waiting_step(**options):
        until(lambda: seen or added.qsize() + len(llm.scheduler.waiting) == 3)
        seen.append(len(llm.scheduler.waiting) + len(llm.scheduler.running))
        return step(**options)

    monkeypatch.setattr(llm, "step", waiting_step)
    answers = asked(engine, *[ids_of(text) for text in TEXTS])
    assert max(seen) == 3 and [rows(answer.arrays)[0] for answer in answers] == [expected(text) for text in TEXTS]


def test_a_mistake_costs_its_own_request(ensemble):
    engine = ensemble("mini-t5")[1]["mini-t5-engine"]
    wrong, good = asked(engine, {"input_ids": np.full((1, 4), 10**6, np.uint32)}, ids_of(TEXTS[0]))
    assert "outside the vocabulary" in wrong.error.message() and wrong.error.message().endswith(".")
    for count in (0, 1):
        [wrong] = asked(engine, {"pixel_values": np.zeros((1, count, 3, 8, 8), np.float32)})
        assert wrong.error.message().endswith(".") and "Error:" not in wrong.error.message()
    assert rows(good.arrays) == [expected(TEXTS[0])]


@pytest.mark.parametrize("beams", [1, 3])
def test_the_ensemble_gives_texts(ensemble, beams):
    given = {"text_input": texts(*TEXTS)}
    options = {}
    if beams > 1:
        given["beam_width"], options = np.full((3, 1), beams, np.uint32), {"num_beams": 3, "num_return_sequences": 3}
    found = through(*_named("mini-t5", ensemble), given)
    for row, text in enumerate(TEXTS):
        best = alone("mini-t5").generate(text=text, **options)
        assert found["text_output"][row].tolist() == [o.text.encode() for o in (best, *best.alternatives)]


def test_words_as_texts_go_through_the_ensemble_to_the_engine(ensemble):
    given = {"text_input": texts(TEXTS[0]), "stop_words": np.array([[b"Schiff", b""]], object)}
    found = through(*_named("mini-t5", ensemble), given)
    assert found["sequence_length"].item() == len(expected(TEXTS[0], stop=["Schiff"])) < len(expected(TEXTS[0]))


def _named(model, ensemble):
    repository, models = ensemble(model)
    return repository, model, models


def test_images_and_prompts_go_through_the_ensemble(ensemble):
    """Some rows have an image, others none."""
    picture = np.array([[SCENE.read_bytes()]], object)
    llava = alone("mini-llava")
    found = through(*_named("mini-llava", ensemble), {"text_input": texts(SIGN), "image": picture})
    assert found["text_output"][0, 0].decode() == llava.generate(images=[SCENE], prompt=SIGN).text
    found = through(*_named("mini-llava", ensemble), {"text_input": texts("Hello.")})
    assert found["text_output"][0, 0].decode() == llava.generate(prompt="Hello.").text


@pytest.mark.slow
def test_pages_go_through_the_ensemble(ensemble):
    page = np.array([[(EXAMPLES / "page.png").read_bytes()]], object)
    start = {"image": page, "text_input": texts("#"), "max_output_len": np.array([[8]], np.uint32)}
    output = alone("mini-nougat").generate(images=[EXAMPLES / "page.png"], prompt="#", max_new_tokens=8)
    assert through(*_named("mini-nougat", ensemble), start)["text_output"][0, 0].decode() == output.text


def test_streams_grow_to_the_whole_answer(exported):
    repository = exported("mini-t5", "--stream", "--max-batch-size", "2", "--name", "t5")
    assert config_of(repository / "t5-engine").model_transaction_policy.decoupled
    with running(repository / "t5-engine") as engine, running(repository / "t5-postprocessing") as after:
        streams = streamed(engine, ids_of(*TEXTS[:2]), ids_of(TEXTS[2]))
        [[whole]] = streamed(engine, {**ids_of(TEXTS[2]), "stream": np.array([[False]])})
        assert rows(whole.arrays) == [expected(TEXTS[2])]
        [[wrong]] = streamed(engine, {"input_ids": np.zeros((1, 0), np.uint32)})
        assert "holds nothing" in wrong.error.message()
        for stream, asked_texts in zip(streams, (TEXTS[:2], TEXTS[2:]), strict=True):
            lengths = [int(response.arrays["sequence_length"].sum()) for response in stream]
            assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
            assert rows(stream[-1].arrays) == [expected(text) for text in asked_texts]
            [text] = asked(after, {name: stream[-1].arrays[name] for name in READ_BACK})
            assert text.arrays["text_output"][0, 0].decode() == alone("mini-t5").generate(text=asked_texts[0]).text


def test_each_step_takes_what_comes_from_one_decoupled_model(exported):
    """Triton loads no ensemble with a step whose inputs come partly from a decoupled model, partly from before it."""
    repository = exported("mini-t5", "--stream", "--max-batch-size", "2", "--name", "t5")
    ensemble = config_of(repository / "t5")
    behind: dict[str, set[str]] = {each.name: set() for each in ensemble.input}  # tensor -> decoupled models before it
    for step in ensemble.ensemble_scheduling.step:
        found = {frozenset(behind[outer]) for outer in step.input_map.values() if outer not in _names(ensemble.input)}
        assert len(found) <= 1
        own = {step.model_name} if config_of(repository / step.model_name).model_transaction_policy.decoupled else set()
        behind |= {outer: set().union(*found) | own for outer in step.output_map.values()}
    assert {frozenset(behind[name]) for name in _names(ensemble.output)} == {frozenset({"t5-engine"})}


def _names(tensors) -> list[str]:
    return [tensor.name for tensor in tensors]


def test_configurations_say_what_the_server_says(exported):
    """Both come from one list of tensors."""
    import tritonclient.http as triton

    for model in ("mini-t5", "mini-llava"):
        repository = exported(model)
        whole, engine = config_of(repository / model), config_of(repository / f"{model}-engine")
        assert (whole.platform, engine.backend) == ("ensemble", "python") and engine.HasField("dynamic_batching")
        with serving(load(model)) as served, triton.InferenceServerClient(served.address) as client:
            said = client.get_model_config(model)
        assert whole.max_batch_size == engine.max_batch_size == said["max_batch_size"]
        for side in ("input", "output"):
            ours = {_shown(tensor) for config in (whole, engine) for tensor in getattr(config, side)}
            ours = {tensor for tensor in ours if tensor[0] != INPUT_LENGTHS}  # one part of the ensemble tells another
            assert ours == {(t["name"], t["data_type"], tuple(t["dims"])) for t in said[side]}


def _shown(tensor) -> tuple:
    kind = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    return tensor.name, kind, tuple(tensor.dims)


def test_options_reach_the_configuration(exported, tmp_path):
    repository = exported("mini-t5", "--stream", "--max-batch-size", "2", "--name", "t5")
    assert {each.name for each in repository.iterdir()} == {"t5", "t5-engine", "t5-preprocessing", "t5-postprocessing"}
    assert config_of(repository / "t5-engine").max_batch_size == 2
    out = tmp_path / "gpu"
    assert call("export-triton", "mini-t5", "-o", out, "--device", "cuda:1", "--instances", "2").exit_code == 0
    [group] = config_of(out / "mini-t5-engine").instance_group
    assert (group.count, list(group.gpus)) == (2, [1]) and group.kind == group.KIND_GPU


def test_how_an_engine_is_loaded_goes_into_the_configuration(tmp_path):
    """Triton's process and our server load it so."""
    from vlm_app.server.repository.repository import scan

    out, given = tmp_path / "r", ("--threads", 1, "--max-seq-len", 9, "--cross-kv-cache-fraction", 0.3)
    assert call("export-triton", "mini-t5", "-o", out, "--device", "cpu", *given).exit_code == 0
    config = config_of(out / "mini-t5-engine")
    assert {name: p.string_value for name, p in config.parameters.items()} == {
        "threads": "1", "max_seq_len": "9", "cross_kv_cache_fraction": "0.3",
    }  # fmt: skip
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with running(out / "mini-t5-engine") as engine:
            [found] = asked(engine, ids_of("translate English to German: twenty-one thousand"))
        assert torch.get_num_threads() == 1 and found.arrays["sequence_length"].max() <= 9
    finally:
        torch.set_num_threads(before)
    options = scan(str(out))["mini-t5"].options
    assert options.build == {"max_seq_len": 9, "max_batch_size": 8} and options.runtime["threads"] == 1
    file = out / "mini-t5-engine" / "config.pbtxt"
    file.write_text(file.read_text().replace('"1"', '"many"'))
    assert "the parameter threads is 'many'; it must be a number" in str(scan(str(out))["mini-t5"])


def test_a_repository_takes_more_models_and_loses_nothing(tmp_path):
    out = tmp_path / "repository"
    export = lambda *more: call("export-triton", "mini-t5", "-o", out, "--device", "cpu", *more)  # noqa: E731
    assert export().exit_code == 0 and export().exit_code == 0
    before = {file.relative_to(out): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert export("--name", "other").exit_code == 0 and len(list(out.iterdir())) == 8
    assert before.items() <= {f.relative_to(out): f.read_bytes() for f in out.rglob("*") if f.is_file()}.items()
    shutil.rmtree(out / "other-engine")  # what is left is not what was written
    refused = export("--name", "other")
    assert refused.exit_code == 2 and "can take other" in refused.stderr and (out / "other").is_dir()
    (out / "notes.txt").write_text("mine")
    assert export().exit_code == 2 and (out / "notes.txt").read_text() == "mine"
    for options, words in (
        (("--instances", "0"), "instances is 0"),
        (("--name", "a/b"), "no name of a model"),
        (("--device", "tpu"), "device is 'tpu'"),
    ):
        result = call("export-triton", "mini-t5", "-o", tmp_path / "x", "--device", "cpu", *options)
        assert result.exit_code == 2 and words in result.stderr and len(result.stderr.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["repository"]
