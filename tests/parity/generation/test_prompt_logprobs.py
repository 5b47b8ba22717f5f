"""Log-probabilities of prompts' tokens against Hugging Face's, FP32 on the CPU, however a prompt is batched, cut,
shared or computed again."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

import vlm
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.errors import InputError
from vlm.executor.paged.prefill import LOGITS_ROWS
from vlm.executor.paged.runner import PagedRunner
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams

LENGTHS = (5, 17, 1, 33, 2, 40, 40)
KINDS = {"gpt2": tiny.gpt2, "llama": lambda: tiny.llama(seed=1), "opt": tiny.opt, "bart": lambda: tiny.bart(seed=4)}
RUNTIMES = [
    {},
    {"burst": 3, "max_batch_size": 2, "max_prefill_tokens": 7},
    {"block_size": 4, "burst": 3, "max_kv_blocks": 33},  # sequences are preempted
    {"batch_invariant": True},
    {"num_speculative_tokens": 3},
]


@pytest.fixture(scope="module", params=[*KINDS])
def subject(request, tmp_path_factory):
    model = KINDS[request.param]()
    return model, engine_dir(model, tmp_path_factory.mktemp("scores"), max_batch_size=8)


def cases_of(model) -> list[dict]:
    """What requests have beside their settings; the last two prompts are one."""
    prompts = [tuple(each) for each in tiny.prompts(model, LENGTHS[:-1], seed=3)]
    prompts.append(prompts[-1])
    if not model.config.is_encoder_decoder:
        return [{"decoder_prompt_token_ids": prompt} for prompt in prompts]
    text = tuple(tiny.texts(model, (9,), seed=2)[0])
    start = model.generation_config.decoder_start_token_id
    return [{"decoder_prompt_token_ids": (start, *prompt), "encoder_input_ids": text} for prompt in prompts]


@torch.no_grad()
def exact_scores(model, case: dict) -> torch.Tensor:
    """[prompt - 1, vocab]: what Hugging Face's network says about the tokens behind the first."""
    row = torch.tensor([case["decoder_prompt_token_ids"]])
    if model.config.is_encoder_decoder:
        source = torch.tensor([case["encoder_input_ids"]])
        return model(input_ids=source, decoder_input_ids=row).logits[0, :-1].log_softmax(-1)
    return model(input_ids=row).logits[0, :-1].log_softmax(-1)


def completed(pipe: Pipeline, requests: list[Request]) -> list:
    """Returns completions, and holds first updates to have brought what is said of a prompt, and no others."""
    ids, updates = [pipe.llm.add([request])[0] for request in requests], []
    while pipe.llm.has_work:
        updates += pipe.llm.step()
    for number in ids:
        first, *later = [update for update in updates if update.request_id == number]
        assert not any(update.prompt for update in later)
        assert first.prompt is [u.completion for u in (first, *later)][-1].prompt
    done = {update.request_id: update.completion for update in updates if update.finished}
    return [done[number] for number in ids]


@pytest.mark.parametrize("runtime", RUNTIMES, ids=str)
def test_prompts_are_scored_as_by_hugging_face(subject, runtime):
    """Beside requests that ask for none, whose tokens are the same."""
    model, engine = subject
    coded = model.config.is_encoder_decoder and "max_kv_blocks" in runtime
    how = runtime | ({"max_kv_blocks": 66, "cross_kv_cache_fraction": 0.5} if coded else {})
    pipe, cases = Pipeline(engine, RuntimeConfig(device="cpu", **how)), cases_of(model)
    counts = (None, 0, 3)
    requests = [
        Request(**case, params=SamplingParams(max_new_tokens=20, ignore_eos=True, prompt_logprobs=count))
        for case in cases for count in counts
    ]  # fmt: skip
    done = completed(pipe, requests)
    for i, case in enumerate(cases):
        none, chosen, several = done[3 * i : 3 * i + 3]
        exact, tokens = exact_scores(model, case), case["decoder_prompt_token_ids"]
        assert none.prompt is None and none.token_ids == chosen.token_ids == several.token_ids
        for completion, count in ((chosen, 0), (several, 3)):
            assert completion.prompt.token_ids == tokens and completion.prompt.logprobs[0] is None
            for row, token, places in zip(exact, tokens[1:], completion.prompt.logprobs[1:], strict=True):
                assert next(iter(places)) == token and set(places) == {token, *row.topk(count).indices.tolist()}
                torch.testing.assert_close(torch.tensor([*places.values()]), row[[*places]], atol=1e-4, rtol=0)
    assert ("max_kv_blocks" in runtime) == (sum(c.preemptions for c in done) > 0)
    assert pipe.llm.scheduler.blocks.balanced and not pipe.llm.executor.prompt_logprobs._parts


def test_outputs_have_them(subject):
    model, engine = subject
    pipe, case = Pipeline(engine, RuntimeConfig(device="cpu")), cases_of(model)[1]
    request = Request(**case, params=SamplingParams(max_new_tokens=2, prompt_logprobs=1))
    first = pipe.outputs.output(completed(pipe, [request])[0])
    again = pipe.outputs.output(completed(pipe, [request])[0])  # its beginning is known
    assert len(first.prompt_logprobs) == len(case["decoder_prompt_token_ids"])
    assert first.prompt_logprobs[0] is None and first.prompt_logprobs == again.prompt_logprobs


def test_rows_of_an_image_have_none_and_many_rows_theirs():
    model = vlm.load("mini-llava", device="cpu")
    image = {"images": [Image.new("RGB", (96, 96), "red")], "prompt": "the red ball " * 60}
    settings = {"max_new_tokens": 1, "return_context_logits": True}
    output, tokens = model.generate(image, prompt_logprobs=0, **settings), model.request(image).decoder_prompt_token_ids
    assert output.context_logits is not None and output.prompt_logprobs is not None and len(tokens) > LOGITS_ROWS
    exact = output.context_logits.log_softmax(-1)
    assert any(token >= exact.shape[1] for token in tokens)
    for row, token, places in zip(exact, tokens[1:], output.prompt_logprobs[1:], strict=False):
        assert (places is None) == (token >= exact.shape[1])
        assert places is None or places == {token: pytest.approx(float(row[token]), abs=1e-4)}


def test_beams_have_none():
    with pytest.raises(InputError, match="prompt_logprobs are for single sequences: set num_beams to 1"):
        SamplingParams(num_beams=2, prompt_logprobs=0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"prompt_logprobs": 0}, "no log-probabilities of prompts; leave prompt_logprobs out"),
        ({"return_context_logits": True}, "gives generation logits alone"),
    ],
)
def test_compiled_engines_refuse_what_is_said_of_prompts(subject, monkeypatch, asked, said):
    model, engine = subject
    monkeypatch.setattr(PagedRunner, "gives_context_logits", False)  # as those over slots have it
    pipe = Pipeline(engine, RuntimeConfig(device="cpu"))
    with pytest.raises(InputError, match=said):
        pipe.llm.add([Request(**cases_of(model)[0], params=SamplingParams(max_new_tokens=1, **asked))])
