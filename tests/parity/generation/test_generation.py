"""Generation settings: those that published folders say, and each of Hugging Face's processors in ragged batches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMixin

from tests.checkout import ROOT
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, pipeline
from vlm.api.pipeline import Pipeline
from vlm.artifacts.hugging_face.generation_config import FIELDS, generation_defaults, standing_alone
from vlm.config import RuntimeConfig
from vlm.engine.sequence_blocks import SequenceBlocks
from vlm.errors import InputError
from vlm.requests.generation import model_defaults, sampling_params
from vlm.requests.request import Request

TESTS = ROOT / "tests"
RESOLVED = {"eos_token_id", "decoder_start_token_id"}
NEW = 14


def published() -> dict[str, dict]:
    """Returns what folders say, by their names: config.json and generation_config.json; some are not in a file."""
    found = json.loads((TESTS / "published_generation.json").read_text())
    for path in sorted((TESTS / "published").glob("*/config.json")):
        own = {"config": json.loads(path.read_text())}
        if (more := path.with_name("generation_config.json")).exists():
            own["generation"] = json.loads(more.read_text())
        found[path.parent.name.replace("__", "/", 1)] = own
    return found


PUBLISHED = published()


def cpu(**options) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", **options)


def hugging_face(folder: Path, files: dict) -> SimpleNamespace:
    """The settings that `generate` would have: those of `from_pretrained`, then its special tokens."""
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    try:
        found = GenerationConfig.from_pretrained(folder)
    except OSError:
        found = GenerationConfig.from_pretrained(folder, config_file_name="config.json", _from_model_config=True)
    starts = found.bos_token_id is not None or found.decoder_start_token_id is not None
    model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=starts), device="cpu")
    GenerationMixin._prepare_special_tokens(model, found)
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_hugging_faces(name, tmp_path):
    entry = PUBLISHED[name]
    said = {"config": entry.get("config", {}), "generation": entry.get("generation")}
    files = {"config.json": said["config"], "generation_config.json": said["generation"]}
    want = hugging_face(tmp_path, {name: content for name, content in files.items() if content is not None})
    found = standing_alone(generation_defaults(said["config"], said["generation"]))
    for field in FIELDS - RESOLVED:
        assert found.get(field) == getattr(want, field, None), field
    ends = found["eos_token_id"]
    ends = ends if isinstance(ends, list) or ends is None else [ends]
    assert ends == (None if want._eos_token_tensor is None else want._eos_token_tensor.tolist())
    start = want._decoder_start_token_tensor if want._decoder_start_token_tensor is not None else want._bos_token_tensor
    assert found["decoder_start_token_id"] == (None if start is None else start.item())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_make_a_request(name):
    """What Hugging Face would apply is applied: nothing of these is only warned of."""
    said = PUBLISHED[name]
    generation = standing_alone(generation_defaults(said.get("config", {}), said.get("generation")))
    params = sampling_params({}, generation, loop_detection=False)
    defaults = GenerationConfig._get_default_generation_params()
    value_of = lambda name: defaults[name] if generation.get(name) is None else generation[name]  # noqa: E731
    for field in ("num_beams", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "early_stopping"):
        assert getattr(params, field) == value_of(field)
    if generation.get("do_sample") is True:
        for field in ("temperature", "top_k", "top_p"):
            assert getattr(params, field) == value_of(field)
    else:
        assert params.temperature == 0


# --- processors, each request with its own settings in one batch
EVERY = {
    "none": {},
    "input is favoured": {"encoder_repetition_penalty": 3.0},
    "input is shunned": {"encoder_repetition_penalty": 0.3},
    "no pairs of the input": {"encoder_no_repeat_ngram_size": 2},
    "no tokens of the input": {"encoder_no_repeat_ngram_size": 1},
    "ends get likelier": {"exponential_decay_length_penalty": (3, 1.4)},
    "biases": {"sequence_bias": [[[7], 2.5], [[9, 11], -4.0], [[3], -1.0], [[20], 6.0]]},
    "logit bias": {"logit_bias": {7: 2.5, "9": -100, 20: 6.0}, "repetition_penalty": 1.3},
    "allowed": {"allowed_token_ids": [2, *range(5, 30)], "sequence_bias": [[[7], 1.0]], "logit_bias": {8: 3}},
    "suppressed": {"suppress_tokens": list(range(3, 60, 2))},
    "suppressed at first": {"begin_suppress_tokens": [t for t in range(60) if t % 11]},
    "many bad words": {"bad_words_ids": [[a, b] for a in range(3, 60) for b in range(4, 60, 4)] + [[50], [2], [1]]},
    "two shortest lengths": {"min_length": 30, "min_new_tokens": 3, "exponential_decay_length_penalty": (3, 1.4)},
    "one of two ends": {"forced_eos_token_id": [31, 17]},
    "longest words": {"bad_words_ids": [list(range(3, 13)), [44]]},
    "all": {"encoder_repetition_penalty": 1.5, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2,
            "sequence_bias": [[[8], 2.0], [[8, 8], 3.0]], "suppress_tokens": [5, 6], "begin_suppress_tokens": [12],
            "bad_words_ids": [[14], [15, 16]], "exponential_decay_length_penalty": (5, 1.1), "min_length": 6,
            "renormalize_logits": True, "remove_invalid_values": True, "encoder_no_repeat_ngram_size": 3},
}  # fmt: skip


@pytest.fixture(scope="module", params=["mbart", "llama"])
def subject(request, tmp_path_factory):
    model = tiny.bart(seed=4, multilingual=True) if request.param == "mbart" else tiny.llama(seed=1)
    return model, engine_dir(model, tmp_path_factory.mktemp("settings"), max_batch_size=24)


def inputs_of(model) -> list[list[int]]:
    """One for each of the settings, of three in turn."""
    make = tiny.texts if model.config.is_encoder_decoder else tiny.prompts
    three = make(model, (5, 17, 11), seed=2)
    return [three[i % 3] for i in range(len(EVERY))]


def request_of(model, ids: list[int], params) -> Request:
    if model.config.is_encoder_decoder:
        start = model.generation_config.decoder_start_token_id
        return Request((start,), encoder_input_ids=tuple(ids), params=params)
    return Request(tuple(ids), params=params)


def decoded(pipe: Pipeline, model, inputs, settings) -> list:
    """Outputs of requests with settings of their own, which run together."""
    ids, found = {}, {}
    for i, (text, given) in enumerate(zip(inputs, settings, strict=True)):
        params = sampling_params({"max_new_tokens": NEW, **given}, {}, loop_detection=False)
        ids[pipe.llm.add([request_of(model, text, params)])[0]] = i
    while pipe.llm.has_work:
        found |= {ids[u.request_id]: pipe.outputs.output(u.completion) for u in pipe.llm.step() if u.finished}
    return [found[i] for i in range(len(inputs))]


def in_its_words(options: dict) -> dict:
    """A bias or a list of allowed tokens as Hugging Face has them."""
    found = dict(options)
    biases = [[[int(token)], float(value)] for token, value in found.pop("logit_bias", {}).items()]
    if biases:
        found["sequence_bias"] = [*found.get("sequence_bias", []), *biases]
    if allowed := found.pop("allowed_token_ids", None):
        found["prefix_allowed_tokens_fn"] = lambda row, ids: allowed
    return found


@torch.no_grad()
def hf(model, ids: list[int], **options) -> list[int]:
    """New tokens of one input, up to and with the end token; its penalties take lists and floats."""
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **in_its_words(options)}
    out = model.generate(torch.tensor([ids]), **options)[0].tolist()
    tokens = out[1:] if model.config.is_encoder_decoder else out[len(ids) :]
    end = model.config.eos_token_id
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


@pytest.mark.parametrize("beams", [1, 3])
def test_every_processor_in_one_ragged_batch(subject, beams):
    model, engine = subject
    inputs = inputs_of(model)
    want = [hf(model, ids, num_beams=beams, **given) for ids, given in zip(inputs, EVERY.values(), strict=True)]
    plain = [hf(model, ids, num_beams=beams) for ids in inputs[:3]]
    differ = [name for i, name in enumerate(EVERY) if want[i] != plain[i % 3]]
    assert len(differ) >= 9, "the settings make no difference"
    pipe = Pipeline(engine, cpu(burst=4, block_size=8, max_batch_size=9))
    found = decoded(pipe, model, inputs, [{"num_beams": beams, **given} for given in EVERY.values()])
    for name, out, tokens in zip(EVERY, found, want, strict=True):
        assert out.token_ids == tokens, name
    assert pipe.llm.scheduler.blocks.balanced


# --- equal scores: any of several ends is forced, with a score of 0
TIES = (
    {"num_beams": 2, "forced_eos_token_id": [31, 17, 44], "max_new_tokens": 3},
    {"num_beams": 5, "forced_eos_token_id": [5, 6, 7, 8, 9, 10, 11], "max_new_tokens": 4, "length_penalty": -1.0},
    {"num_beams": 3, "forced_eos_token_id": list(range(20, 40)), "eos_token_id": [2, 20, 21, 22, 23]},
    {"num_beams": 9, "forced_eos_token_id": [40, 30, 50], "eos_token_id": [2, 3, 4], "max_new_tokens": 5},
    {"num_beams": 4, "allowed_token_ids": [7, 9, 11], "forced_eos_token_id": [7, 9, 11], "early_stopping": True},
    {"num_beams": 2, "eos_token_id": list(range(2, 30)), "forced_eos_token_id": [12, 13], "min_new_tokens": 7},
)


def test_equal_scores_in_one_ragged_batch(subject):
    """Which of them a search takes follows from its own width and ends, as it does in Hugging Face's."""
    model, engine = subject
    settings = [{"num_return_sequences": given["num_beams"], "max_new_tokens": 8, **given} for given in TIES]
    inputs = inputs_of(model)[: len(settings)]
    pipe = Pipeline(engine, cpu(block_size=8))
    outputs = decoded(pipe, model, inputs, settings)
    for ids, given, out in zip(inputs, settings, outputs, strict=True):
        with torch.no_grad():
            rows = model.generate(torch.tensor([ids]), do_sample=False, pad_token_id=0, **in_its_words(given)).tolist()
        start = 1 if model.config.is_encoder_decoder else len(ids)
        for each, row in zip((out, *out.alternatives), rows, strict=True):
            assert each.token_ids == row[start : start + len(each.token_ids)], given
        [alone] = decoded(pipe, model, [ids], [given])
        assert [o.token_ids for o in (out, *out.alternatives)] == [o.token_ids for o in (alone, *alone.alternatives)]


WHAT_GIVES_WAY = {
    "a first token that is the last": {"max_new_tokens": 1, "forced_bos_token_id": 9, "forced_eos_token_id": [5, 6, 2]},
    "the same of a search": {
        "max_new_tokens": 1,
        "forced_bos_token_id": 9,
        "forced_eos_token_id": [5, 6, 2],
        "num_beams": 2,
    },
    "one end": {"max_new_tokens": 1, "forced_bos_token_id": 9, "forced_eos_token_id": 6, "num_beams": 2},
    "the first of two biases": {"sequence_bias": [[[7], 9.0], [[7], 2.0], [[9, 11], 1.0]]},
}


def compared(subject, settings):
    """Inputs in one batch, each with settings of its own, against Hugging Face; returns the outputs by name."""
    model, engine = subject
    inputs = inputs_of(model)[: len(settings)]
    found = decoded(Pipeline(engine, cpu(block_size=8)), model, inputs, settings.values())
    for name, ids, out in zip(settings, inputs, found, strict=True):
        assert out.token_ids == hf(model, ids, **settings[name]), name
    return dict(zip(settings, found, strict=True))


def test_settings_that_give_way_to_later_ones(subject):
    compared(subject, WHAT_GIVES_WAY)


STUCK = {
    "greedy": {"allowed_token_ids": [7, 9, 11], "no_repeat_ngram_size": 1},
    "pairs": {"allowed_token_ids": [7, 9], "no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    "one token": {"allowed_token_ids": [7], "bad_words_ids": [[7]], "num_beams": 3},
    "some beams": {
        "allowed_token_ids": [7, 9, 11, 30],
        "bad_words_ids": [[9, 7], [9, 11], [9, 30], [9, 9]],
        "num_beams": 3,
    },
    "ends too early": {"allowed_token_ids": [2], "min_new_tokens": 4, "num_beams": 2},
    "nothing": {"num_beams": 4},
}


def test_allowed_tokens_of_which_none_is_left_come_again(subject):
    """No others do: those of a row, or of a search none of whose beams has any left, in one batch with others."""
    for name, out in compared(subject, STUCK).items():
        assert set(out.token_ids) <= set(STUCK[name].get("allowed_token_ids", out.token_ids))


@pytest.mark.parametrize("beams", [1, 2])
def test_end_tokens_of_any_number(subject, beams):
    """Forty of them end an output, none is cut; a search keeps as many candidates as Hugging Face's."""
    model, engine = subject
    inputs, ends = inputs_of(model)[:4], list(range(2, 42))
    many = ends if beams == 1 else ends[:20]
    pipe = Pipeline(engine, cpu(block_size=8))
    given = {"num_beams": beams, "eos_token_id": many, "min_new_tokens": 3, "length_penalty": 0.3}
    found = decoded(pipe, model, inputs, [given] * len(inputs))
    for ids, out in zip(inputs, found, strict=True):
        options = {"num_beams": beams, "eos_token_id": many, "min_new_tokens": 3, "length_penalty": 0.3}
        want = model.generate(torch.tensor([ids]), max_new_tokens=NEW, do_sample=False, pad_token_id=0, **options)[0]
        tokens = want.tolist()[1 if model.config.is_encoder_decoder else len(ids) :]
        end = next((n for n, token in enumerate(tokens, 1) if n > 3 and token in many), len(tokens))
        assert out.token_ids == tokens[:end]
        assert out.finish_reason == ("stop" if out.token_ids[-1] in many else "length")


def test_a_folders_settings_are_applied(tmp_path):
    """From generation_config.json alone, sampling included; a request that says otherwise comes first."""
    model = tiny.bart(seed=5)
    own = {"suppress_tokens": [5, 9, 13], "sequence_bias": [[[7], 3.0]], "num_beams": 3, "num_return_sequences": 2,
           "forced_eos_token_id": [2], "renormalize_logits": True, "min_length": 4, "max_length": NEW + 1}  # fmt: skip
    for name, value in own.items():
        setattr(model.generation_config, name, value)
    texts = tiny.texts(model, (9, 20))
    with torch.no_grad():
        want = [model.generate(torch.tensor([text])).tolist() for text in texts]
    pipe = pipeline(model, tmp_path)
    for text, rows in zip(texts, want, strict=True):
        out = pipe.generate(encoder_input_ids=text)
        found = [o.token_ids for o in (out, *out.alternatives)]
        assert found == [[t for t in row[1:] if t != 1] for row in rows]


def test_a_model_that_samples_does_so(tmp_path):
    """do_sample with its filters, 50 likeliest tokens where it names no number; temperature 0 and do_sample False are
    greedy."""
    model = tiny.llama(seed=1)
    prompt = tiny.prompts(model, (6,))[0]
    greedy = hf(model, prompt)
    generation = model.generation_config
    generation.do_sample, generation.temperature, generation.top_p = True, 1.7, 0.9
    pipe = pipeline(model, tmp_path)
    params = pipe.request({"decoder_prompt_token_ids": prompt}).params
    assert (params.temperature, params.top_p, params.top_k) == (1.7, 0.9, 50)
    drawn = [pipe.generate(decoder_prompt_token_ids=prompt, max_new_tokens=NEW) for _ in range(6)]
    assert len({tuple(out.token_ids) for out in drawn}) > 1
    again = pipe.generate(decoder_prompt_token_ids=prompt, max_new_tokens=NEW, seed=drawn[0].seed)
    assert again.token_ids == drawn[0].token_ids
    for said in ({"temperature": 0.0}, {"do_sample": False}, {"num_beams": 1, "do_sample": False, "top_p": 0.5}):
        assert pipe.generate(decoder_prompt_token_ids=prompt, max_new_tokens=NEW, **said).token_ids == greedy


def test_what_gives_way():
    chat = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 40}
    plain = {"temperature": 0.9, "top_p": 0.6, "num_return_sequences": 3}
    of = lambda given, generation: sampling_params(given, generation, loop_detection=False)  # noqa: E731
    assert model_defaults(plain) == {}, "a model that does not sample"
    assert of({"num_beams": 4}, chat).temperature == 0
    assert (of({"temperature": 0.2}, chat).top_p, of({"temperature": 0.2}, chat).top_k) == (0.9, 50)
    assert (of({"temperature": 0.2}, plain).top_p, of({"temperature": 0.2}, plain).top_k) == (0.6, 0)
    asked = of({"do_sample": True}, plain)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.num_return_sequences) == (0.9, 0.6, 50, 3)
    assert of({}, {"num_beams": 3, "do_sample": True, "temperature": 2.0}).temperature == 0
    assert of({"stop_strings": "a"}, {}).stop == ("a",)
    assert of({"min_new_tokens": 2}, {"min_length": 9}).min_length == 0
    assert of({"min_new_tokens": 2, "min_length": 9}, {}).min_length == 0
    assert of({"sequence_bias": {(3, 4): 1.0}}, {}).sequence_bias == (((3, 4), 1.0),)
    assert of({"logit_bias": {"3": 1}}, {}).logit_bias == ((3, 1.0),)
    for wrong in ({"a": 1}, [3], 5, {3: None}):
        with pytest.raises(InputError, match="logit_bias must map token ids"):
            of({"logit_bias": wrong}, {})
    with pytest.raises(InputError, match="logit_bias of token 3 is nan; it must lie in"):
        of({"logit_bias": {3: float("nan")}}, {})
    assert of({"sequence_bias": [[[3], float("-inf")]]}, {}).sequence_bias == (((3,), float("-inf")),)


# --- logits
@torch.no_grad()
def hf_logits(model, ids: list[int], prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """[prompt + new - 1, vocab]: what Hugging Face's network says after each token."""
    row = torch.tensor([[*prompt, *tokens[:-1]]])
    if model.config.is_encoder_decoder:
        return model(input_ids=torch.tensor([ids]), decoder_input_ids=row).logits[0]
    return model(input_ids=row).logits[0]


@pytest.mark.parametrize("runtime", [{"burst": 4}, {"burst": 3, "max_batch_size": 2, "max_prefill_tokens": 7}], ids=str)
def test_context_and_generation_logits(subject, runtime):
    """Hugging Face's, greedy and sampled, beside requests that want none, of prompts whose beginning is known."""
    model, engine = subject
    coded, start = model.config.is_encoder_decoder, model.generation_config.decoder_start_token_id
    texts = inputs_of(model)[:3]
    prompts = [[start], [start, 7, 9, 11, 8, 13], [start, 5]] if coded else [texts[0], texts[1], texts[1][:9]]
    settings = [{}, {"temperature": 1.0, "seed": 3}, {"suppress_tokens": [5], "repetition_penalty": 1.5}]
    wanted = [{}, {"return_context_logits": True}, {"return_generation_logits": True},
              {"return_context_logits": True, "return_generation_logits": True}]  # fmt: skip
    pipe = Pipeline(engine, cpu(block_size=4, **runtime))
    cases = [(i, given, want) for i in range(3) for given in settings for want in wanted]
    ids, found = {}, {}
    for n, (i, given, want) in enumerate(cases):
        params = sampling_params({"max_new_tokens": 9, **given, **want}, {}, loop_detection=False)
        request = Request(tuple(prompts[i]), encoder_input_ids=tuple(texts[i]) if coded else None, params=params)
        ids[pipe.llm.add([request])[0]] = n
    while pipe.llm.has_work:
        found |= {ids[u.request_id]: pipe.outputs.output(u.completion) for u in pipe.llm.step() if u.finished}
    for n, (i, _, want) in enumerate(cases):
        out, size = found[n], len(prompts[i])
        assert out.token_ids == found[n - n % 4].token_ids, "to look at logits changes no token"
        exact = hf_logits(model, texts[i], prompts[i], out.token_ids)
        for logits, name, rows in (
            (out.context_logits, "return_context_logits", exact[:size]),
            (out.generation_logits, "return_generation_logits", exact[size - 1 :]),
        ):
            assert (logits is not None) == (name in want)
            if logits is not None:
                torch.testing.assert_close(logits, rows, atol=1e-4, rtol=0)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_prefill_gives_the_token_that_a_decode_step_would(subject, drawn, monkeypatch):
    """Under every setting, with its log-probabilities and logits."""
    model, engine = subject
    coded, start = model.config.is_encoder_decoder, model.generation_config.decoder_start_token_id
    how = {"top_logprobs": 3, "return_generation_logits": True, "return_context_logits": True}
    how |= {"temperature": 0.9, "top_k": 20, "top_p_decay": 0.9, "top_p": 0.9, "seed": 5} if drawn else {}
    found = []
    for from_prefill in (True, False):
        with monkeypatch.context() as patch:
            if not from_prefill:
                patch.setattr(SequenceBlocks, "_has_first", lambda *_: False)
            pipe = Pipeline(engine, cpu(burst=4, block_size=8, max_batch_size=9, max_prefill_tokens=40))
            ids = {}
            for text, (name, given) in zip(inputs_of(model), EVERY.items(), strict=True):
                params = sampling_params({"max_new_tokens": NEW, **how, **given}, {}, loop_detection=False)
                source = {"encoder_input_ids": tuple(text)} if coded else {}
                prompt = (start, *text[:3]) if coded else tuple(text)
                ids[pipe.llm.add([Request(prompt, **source, params=params)])[0]] = name
            completions = {}
            while pipe.llm.has_work:
                completions |= {ids[u.request_id]: u.completion for u in pipe.llm.step() if u.finished}
            found.append(completions)
    for name, one in found[0].items():
        other = found[1][name]
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason), name
        assert [list(top) for top in one.top_logprobs] == [list(top) for top in other.top_logprobs], name
        for attribute in ("logprobs", "generation_logits", "context_logits"):
            ours, theirs = (torch.as_tensor(getattr(each, attribute)) for each in (one, other))
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0, msg=name)


def test_logits_of_beams_are_refused():
    with pytest.raises(InputError, match="set num_beams to 1"):
        sampling_params({"num_beams": 2, "return_context_logits": True}, {}, loop_detection=False)
