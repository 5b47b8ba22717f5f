"""`vlm bench prompt`: decoders alone and vision-language models, tiny ones on the CPU, beside Hugging Face."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from tests.kits.models import tiny
from vlm.build.builder import build_engine
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, InputError, LimitError
from vlm.registry.catalogs import match_family
from vlm.registry.role_configs import RoleConfigs
from vlm_app.bench import prompt as prompts
from vlm_app.bench.config import PromptBenchConfig
from vlm_app.bench.systems import session, subject
from vlm_app.bench.systems.baselines import PromptBaseline
from vlm_app.bench.systems.image_sizes import with_pixel_size
from vlm_app.bench.systems.inputs import as_inputs, random_prompts
from vlm_app.bench.timing.floor import decode_floor
from vlm_app.cli.main import main
from vlm_app.core.processes.running import open_pipeline
from vlm_app.reference import random_model
from vlm_app.reference.vila import Vila

pytestmark = pytest.mark.slow  # every family, beside Hugging Face
CPU = torch.device("cpu")
LLAMA = {"model_type": "llama", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
OPT = {"model_type": "opt", "vocab_size": 60, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48,
       "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128,
        "bos_token_id": 0, "eos_token_id": 2}  # fmt: skip
CODE = {**GPT2, "model_type": "gpt_bigcode"}
T5 = {"model_type": "t5", "is_encoder_decoder": True, "vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48,
      "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
      "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}  # fmt: skip
NEXT = {"model_type": "nemo_gpt", "vocab_size": 60, "hidden_size": 32, "ffn_hidden_size": 48, "num_layers": 2,
        "num_attention_heads": 4, "encoder_seq_length": 128, "position_embedding_type": "rope",
        "rotary_percentage": 0.5, "activation": "fast-swiglu", "normalization": "layernorm1p", "bias": False,
        "share_embeddings_and_output_weights": False, "bos_token_id": 2, "eos_token_id": 3}  # fmt: skip
TOWER = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 16,
         "patch_size": 4}  # fmt: skip
LLAVA = {"model_type": "llava", "image_token_index": 59, "vision_config": TOWER | {"model_type": "clip_vision_model"},
         "text_config": LLAMA}  # fmt: skip
BLIP2 = {"model_type": "blip-2", "num_query_tokens": 5, "image_token_index": 59,
         "vision_config": TOWER | {"model_type": "blip_2_vision_model"},
         "qformer_config": {"model_type": "blip_2_qformer", "hidden_size": 20, "intermediate_size": 36,
                            "num_hidden_layers": 2, "num_attention_heads": 4, "encoder_hidden_size": 24}}  # fmt: skip
VILA = {"model_type": "vila", "decoder": LLAMA,
        "visual": {"vision_tower": TOWER | {"model_type": "siglip_vision_model", "image_size": 20},
                   "mm_vision_select_layer": -2, "mm_vision_select_feature": "cls_patch",
                   "mm_projector_type": "mlp_downsample", "hidden_size": 32}}  # fmt: skip
DECODERS = {"llama": LLAMA, "mistral": LLAMA | {"model_type": "mistral"}, "opt": OPT, "gpt2": GPT2, "code": CODE}
SEEING = {"llava": LLAVA, "blip2-opt": BLIP2 | {"text_config": OPT}, "blip2-t5": BLIP2 | {"text_config": T5},
          "vila": VILA}  # fmt: skip
# its class takes two images side by side for one: of several it is measured by itself alone. A screen in large patches
QWEN = {"model_type": "qwen2_5_vl", "image_token_id": 59, "text_config": LLAMA | {
            "model_type": "qwen2_5_vl_text", "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        "vision_config": {"depth": 2, "hidden_size": 24, "intermediate_size": 40, "num_heads": 3, "patch_size": 108,
                          "window_size": 432, "fullatt_block_indexes": [1], "out_hidden_size": 32}}  # fmt: skip
TILES = {"model_type": "idefics3", "image_token_id": 59, "vision_config": TOWER, "text_config": LLAMA}
# patches of 14 pixels, as its image processor has them without settings
PAGES = {
    "model_type": "lighton_ocr",
    "image_token_id": 59,
    "text_config": LLAMA | {"model_type": "qwen3"},
    "vision_config": TOWER | {"model_type": "pixtral", "hidden_act": "silu", "image_size": 140, "patch_size": 14},
}
PAGES["text_config"] |= {"head_dim": 8, "tie_word_embeddings": True}
FLORENCE = tiny.florence2().config.to_dict() | {"image_processor_size": tiny.FLORENCE_SIZE}
MEASURED = DECODERS | SEEING | {"qwen-vl": QWEN, "idefics3": TILES, "lighton-ocr": PAGES, "florence2": FLORENCE}
ROWS = {
    "idefics3": 13 * 4,
    "qwen-vl": 45,
    "llava": 16,
    "blip2-opt": 5,
    "blip2-t5": 5,
    "vila": 9,
    "lighton-ocr": 20,
    "florence2": 21,
}  # an image's
SCREENS = QWEN | {"vision_config": QWEN["vision_config"] | {"patch_size": 14, "window_size": 112}}
# (width, height) of a picture: pixel values (height, width), and an image's rows
PICTURES = {
    "lighton-ocr": (PAGES, "120x400", (140, 42), 5), "qwen-vl": (SCREENS, "120x81", (84, 112), 12),
    "idefics3": (TILES, "60x41", (64, 64), 13 * 4), "florence2": (FLORENCE, "60x41", (40, 32), 21),
    "llava": (LLAVA, "60x41", (16, 16), 16),
}  # fmt: skip
LISTS = ["--batch-size", "1;3", "--input-output-len", "6,8;4,4", "--repeats", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(session, "bandwidth", lambda device: 1e10)


def written(hf, folder) -> str:
    """A file for --arch; a family that no catalog brings is passed over."""
    try:
        match_family(hf)
    except ConfigError as error:
        pytest.skip(str(error))
    (folder / "config.json").write_text(json.dumps(hf))
    return str(folder / "config.json")


def bench(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main(["bench", *map(str, arguments)])
    return done.value.code or 0


@pytest.mark.parametrize("name", MEASURED)
def test_every_family_is_measured_and_both_systems_find_the_same(name, tmp_path, capsys):
    arch, out = written(MEASURED[name], tmp_path), tmp_path / "prompt.json"
    assert not bench("prompt", "--arch", arch, "--random-weights", *LISTS, "--json", out), capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "The same tokens as Hugging Face's: 100.0% of 8 of the first row" in shown
    result = json.loads(out.read_text())
    assert result["kind"] == "prompt" and result["config"]["dtype"] == "float32"
    assert result["check"] == {"tokens": 8, "agreement": 1.0}
    asked = [(r["input_len"], r["output_len"], r["batch_size"]) for r in result["rows"]]
    assert asked == [(i, o, n) for i, o in ((6, 8), (4, 4)) for n in (1, 3)]
    for row in result["rows"]:
        assert (row["images"], row["image_rows"]) == ((1, ROWS[name]) if name in ROWS else (0, 0))
        for part in (row["vlm"], row["hf"]):
            ([first], [whole]) = part["runs"]["first_token"], part["runs"]["whole"]
            assert part["first_token_ms"] == pytest.approx(first * 1e3)
            assert part["ms_per_token"] == pytest.approx((whole - first) * 1e3 / (row["output_len"] - 1))
            assert part["tokens_per_s"] == pytest.approx(row["batch_size"] * row["output_len"] / whole)
            assert (part["encode_ms"] is not None) == (name in ROWS) and not part["extrapolated"]
            if name in ROWS:
                assert part["requests_per_s"] == pytest.approx(row["batch_size"] / whole)
        assert row["floor"]["reached"] == pytest.approx(row["vlm"]["tokens_per_s"] / row["floor"]["tokens_per_s"])
        assert row["floor"]["step_reached"] == pytest.approx(row["floor"]["step_ms"] / row["vlm"]["ms_per_token"])
    assert not bench("table", out)
    lines = capsys.readouterr().out.splitlines()[2:]
    images = "1 image + " if name in ROWS else ""
    assert lines[0].startswith(f"| {arch}, random weights, float32 | {images}6 in, 8 out, batch 1: first token, ms |")
    assert f"|  | {images}6 in, 8 out, batch 1: a further token, ms |" in lines[1]
    rates = ("requests/s", "tokens/s") if name in ROWS else ("tokens/s",)
    for line, rate in zip(lines[2:], rates, strict=False):
        assert line.startswith(f"|  | {images}6 in, 8 out, batch 3: {rate} |") and line.count("–") == 0
    assert lines[0].endswith("| – | – |") and not lines[1].endswith("| – | – |")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_processed_by_both_systems(name, tmp_path, capsys):
    hf, size, pixels, rows = PICTURES[name]
    options = ["--image-size", size, "--batch-size", 2, "--input-output-len", "6,4", "--repeats", 1, "--device", "cpu"]
    options += ["--hf-batch-size", 1]
    out = tmp_path / "prompt.json"
    assert not bench("prompt", "--arch", written(hf, tmp_path), "--random-weights", *options, "--json", out)
    result = json.loads(out.read_text())
    [row] = result["rows"]
    assert result["check"] == {"tokens": 4, "agreement": 1} and result["config"]["pixel_size"] == list(pixels)
    assert row["hf"]["batch_size"] == 1
    assert row["image_rows"] == rows and row["hf"]["encode_ms"] > 0
    capsys.readouterr()
    assert not bench("table", out)
    line = capsys.readouterr().out.splitlines()[2]
    assert f"| 1 picture of {size} + 6 in, 4 out, batch 2: requests/s |" in line and " (batch 1) |" in line


def test_pictures_are_new_and_processed_where_time_is_taken(tmp_path, monkeypatch):
    asked = with_pixel_size(config_of(written(LLAVA, tmp_path), hf=False, image_size=(60, 41)))
    with session.prepare_session(asked, "prompt", limits=asked.limits) as run:
        draw = random_prompts(run, asked.rows[0], 0)
        batches = [draw(), draw()]
        pictures = [picture for batch in batches for [picture] in batch.pictures]
        assert {picture.size for picture in pictures} == {(60, 41)}
        assert len({picture.tobytes() for picture in pictures}) == 4 and batches[0].pixel_values is None
        with open_pipeline(run.engine, RuntimeConfig(device="cpu")) as pipeline:
            session.in_turns({"vlm": prompts._measure(pipeline, run)})
            cache = pipeline.llm.encoders.encoder_cache
    assert (cache.hits, cache.misses) == (0, 2 * 9)


def test_a_picture_of_a_model_that_is_there(tmp_path):
    """The room for its rows is known before the engine is built of whatever it is."""
    checkpoint = random_checkpoint(PAGES, tmp_path / "c")
    engine = build_engine(checkpoint, tmp_path / "e", BuildConfig())
    random_model.save_random(PAGES, tmp_path / "hf", 0, torch.float32, CPU)
    (tmp_path / "hf" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 70}, "patch_size": 14})
    )
    for model, pixels in ((checkpoint.path, (140, 70)), (engine.path, (140, 70)), (tmp_path / "hf", (70, 42))):
        asked = PromptBenchConfig(model=str(model), device="cpu", image_size=(150, 300), lengths=((6, 8),))
        assert with_pixel_size(asked).pixel_size == pixels


def config_of(arch, **options) -> PromptBenchConfig:
    return PromptBenchConfig(arch=arch, lengths=((6, 8),), batch_sizes=(2,), device="cpu", **options)


@pytest.mark.parametrize("images", [0, 2])
@pytest.mark.parametrize("name", SEEING)
def test_several_images_or_none(name, images, tmp_path):
    asked = config_of(written(SEEING[name], tmp_path), images=images)
    with session.prepare_session(asked, "prompt", limits=asked.limits) as run:
        batch, count = prompts._checked(run)
        rows = asked.image_rows(run.configs)
        assert rows == images * ROWS[name]
        baseline = PromptBaseline(run.folder, "float32", CPU, rows)
        expected = baseline.generate(batch, count)
        with open_pipeline(run.engine, RuntimeConfig(device="cpu")) as pipeline:
            inputs = as_inputs(batch, run.configs)
            found = pipeline.generate(inputs, max_new_tokens=count, min_new_tokens=count)
        if name == "blip2-t5":  # its head is a weight of its own, as it is published
            language = baseline.model.language_model
            assert not torch.equal(language.lm_head.weight, language.shared.weight)
    assert prompts.agreement(torch.tensor([out.token_ids for out in found]), expected)["agreement"] == 1
    logprobs = torch.tensor([out.logprobs for out in found])
    torch.testing.assert_close(logprobs, exact(baseline, batch, expected), atol=1e-4, rtol=0)


@torch.no_grad()
def exact(baseline, batch, tokens):
    """[batch, n]: log-probabilities of what was generated, in one pass."""
    model, ids = baseline.model, baseline._ids(batch)
    given = {} if batch.pixel_values is None else {"pixel_values": baseline._pixels(batch)}
    seq2seq = model.config.get_text_config().is_encoder_decoder
    if isinstance(model, Vila):
        embeds = model.llm.get_input_embeddings()(torch.cat((ids, tokens), 1))
        if given:
            rows = model.get_image_features(**given).reshape(len(ids), -1, embeds.shape[-1])
            embeds[:, : rows.shape[1]] = rows
        logits = model.llm(inputs_embeds=embeds).logits[:, ids.shape[1] - 1 : -1]
    else:
        model = model if given or not hasattr(model, "qformer") else model.language_model
        if seq2seq:
            start = torch.cat((torch.zeros(len(ids), 1, dtype=torch.long), tokens[:, :-1]), 1)
            logits = model(input_ids=ids, decoder_input_ids=start, **given).logits
        else:
            logits = model(input_ids=torch.cat((ids, tokens), 1), **given).logits[:, ids.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def test_csv_without_hugging_face(tmp_path, capsys):
    arch = written(LLAVA, tmp_path)
    assert not bench("prompt", "--arch", arch, "--random-weights", *LISTS, "--images", 2, "--no-hf", "--csv")
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert header[:7] == ["subject", "dtype", "batch", "images", "image_rows", "in", "out"] and len(rows) == 4
    first = dict(zip(header, rows[0], strict=True))
    assert (first["images"], first["image_rows"], first["in"], first["out"]) == ("2", "32", "6", "8")
    assert all(float(first[name]) > 0 for name in ("encode_ms", "first_token_ms", "tokens_per_s", "floor_ms_per_token"))
    assert {name: float(first[name]) for name in ("ms_per_token", "of_floor")}  # of a difference of two measurements
    assert all(value == "" for name, value in first.items() if name.startswith(("hf", "times")))


def test_fewer_tokens_of_hugging_face(tmp_path, capsys):
    options = ["--batch-size", 2, "--input-output-len", "6,8", "--repeats", 1, "--hf-new-tokens", 3, "--device", "cpu"]
    out = tmp_path / "prompt.json"
    assert not bench("prompt", "--arch", written(OPT, tmp_path), "--random-weights", *options, "--json", out)
    assert "Hugging Face: extrapolated from 3 tokens a prompt" in capsys.readouterr().out
    [row] = json.loads(out.read_text())["rows"]
    ([first], [whole]) = row["hf"]["runs"]["first_token"], row["hf"]["runs"]["whole"]
    assert row["hf"]["seconds"] == pytest.approx(whole + (whole - first) / 2 * 5)


def test_what_hugging_face_does_not_know_has_no_baseline(tmp_path, capsys):
    options = ["--input-output-len", "6,4", "--repeats", 1, "--device", "cpu"]
    assert not bench("prompt", "--arch", written(NEXT, tmp_path), "--random-weights", *options)
    shown, told = capsys.readouterr()
    assert "there is nothing that it could load" in shown and "The same tokens" not in shown and "–" in shown
    assert "warning: Hugging Face will not be measured: transformers has no class for " in told


def test_every_prompt_is_new(tmp_path):
    """Else the cache of features, or of prompts' beginnings, would answer."""
    asked = config_of(written(LLAVA, tmp_path), hf=False)
    with session.prepare_session(asked, "prompt", limits=asked.limits) as run:
        [row] = asked.rows
        draw, again = (random_prompts(run, row, 0) for _ in range(2))
        drawn = [draw(), draw(), random_prompts(run, row, 1)()]
        assert torch.equal(again().pixel_values, drawn[0].pixel_values), "the same for both systems"
        images = [image for batch in drawn for image in batch.pixel_values]
        assert len({image.numpy().tobytes() for image in images}) == 6
        assert len({tuple(ids) for batch in drawn for ids in batch.texts.tolist()}) == 6
        with open_pipeline(run.engine, RuntimeConfig(device="cpu")) as pipeline:
            session.in_turns({"vlm": prompts._measure(pipeline, run)})
            cache = pipeline.llm.encoders.encoder_cache
        # warm-up of both lengths, three runs of each, and the check
        assert (cache.hits, cache.misses) == (0, 2 * 9)


def test_floor_of_a_decoder_alone(tmp_path):
    for number, (hf, head) in enumerate(((LLAMA, 60 * 32), (GPT2, 0))):
        checkpoint = random_checkpoint(hf, tmp_path / f"c{number}")
        engine = build_engine(checkpoint, tmp_path / f"e{number}", BuildConfig())
        found = decode_floor(engine, batch_size=3, encoder_rows=16 + 6, new_tokens=8, bandwidth=1e9)
        weights = engine.weights("decoder")
        read = sum(x.numel() for n, x in weights.items() if n not in ("embedding.weight", "positions.weight"))
        assert ("head.weight" in weights) == bool(head)
        assert found.weight_bytes == 4 * (read + (0 if head else 60 * 32))
        width = 16 if head else 32  # two heads of keys and values, or four
        assert found.kv_bytes == 4 * 3 * (16 + 6 + 4) * 2 * 2 * width


@pytest.mark.parametrize("name", ["llava", "blip2-t5"])
def test_the_engine_holds_just_that(name, tmp_path):
    asked = config_of(written(SEEING[name], tmp_path), images=2)
    limits = asked.limits(subject.role_configs(match_family(SEEING[name]), SEEING[name]))
    rows = 2 * ROWS[name] + 6
    assert limits == {"max_batch_size": 2} | (
        {"max_seq_len": rows + 8} if name == "llava" else {"max_seq_len": 9, "max_encoder_input_len": rows}
    )
    engine = build_engine(random_checkpoint(SEEING[name], tmp_path / "c"), tmp_path / "e", BuildConfig(**limits))
    given = {"model": str(engine.path), "device": "cpu", "lengths": ((6, 8),)}
    with session.prepare_session(PromptBenchConfig(**given, images=2), "prompt", limits=asked.limits) as run:
        assert run.folder is None and run.engine.path == engine.path
    more = PromptBenchConfig(**given, images=3)
    with pytest.raises(LimitError, match="was built for"):
        subject.prepare(more, "float32", tmp_path, "prompt", limits=more.limits)


def test_vila_s_folder_is_read_again(tmp_path):
    for number, kind in enumerate(("mlp_downsample", "linear", "mlp2x_gelu")):
        folder = tmp_path / str(number)
        hf = VILA | {"visual": VILA["visual"] | {"mm_projector_type": kind}}
        random_model.save_random(hf, folder, 0, torch.bfloat16, CPU)
        model = Vila.from_pretrained(folder, torch.bfloat16)
        assert model.dtype == torch.bfloat16 and {x.dtype for x in model.parameters()} == {torch.bfloat16}
        assert model.get_image_features(torch.zeros(2, 3, 20, 20).bfloat16()).shape[1:] == (
            9 if number == 0 else 25,
            32,
        )
        assert convert_folder(folder, tmp_path / f"c{number}").family == "vila"


@pytest.mark.parametrize("name", [*DECODERS, "llava", "blip2-opt", "blip2-t5"])
def test_models_are_made_in_their_type(name):
    model = random_model.random_model((DECODERS | SEEING)[name], torch.float16, CPU)
    assert {x.dtype for x in model.parameters()} == {torch.float16}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--batch-size", "1,2"], "--batch-size holds '1,2'; give whole numbers, apart by ';'"),
        (["--batch-size", "0"], "--batch-size holds 0; its numbers must be at least 1"),
        (["--input-output-len", "64"], 'give pairs such as "60,20;128,20"'),
        (["--input-output-len", "9,1"], "asks for 1 token out; at least 2 tokens out"),
        (["--hf-new-tokens", "1"], "--hf-new-tokens is 1; it must be at least 2"),
        (["--hf-repeats", "0"], "--hf-repeats is 0; it must be at least 1"),
        (["--images", "-1"], "--images is -1; it must be at least 0"),
        (["--images", "1"], "gpt2-medium, random weights takes no images; leave --images out"),
        (["--image-size", "640x360"], "gpt2-medium, random weights takes no images; leave --image-size out"),
        (["--image-size", "640"], "--image-size is '640'; give width and height such as 336x336"),
        (["--image-size", "64x36,64x48"], "--image-size is '64x36,64x48'; give one width and height such as 64x36"),
        (["--image-size", "64x36", "--images", "0"], "--image-size is of images, and --images is 0"),
        (["--input-output-len", "1000,25"], "max_seq_len is 1025, this model allows at most 1024"),
    ],
)
def test_mistakes_are_one_sentence(capsys, monkeypatch, arguments, says):
    monkeypatch.setattr(subject, "save_random", None)  # may not be called
    assert bench("prompt", "--device", "cpu", "--random-weights", "--arch", "gpt2-medium", *arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    ("verb", "arch", "says"),
    [
        ("prompt", "nougat-base", "takes images; use vlm bench latency or throughput"),
        ("prompt", "t5-small", "takes text; use vlm bench text"),
        ("text", "gpt2-medium", "takes prompts; use vlm bench prompt"),
        ("text", "llava-1.5-7b", "takes prompts; use vlm bench prompt"),
        ("latency", "blip2-flan-t5-xl", "takes prompts; use vlm bench prompt"),
        ("throughput", "vila-1.5-3b", "takes prompts; use vlm bench prompt"),
    ],
)
def test_the_right_verb_is_named(capsys, verb, arch, says):
    assert bench(verb, "--device", "cpu", "--random-weights", "--arch", arch) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{says}.")


def test_a_size_that_the_model_does_not_take_is_refused(tmp_path, capsys):
    small = PAGES | {"vision_config": PAGES["vision_config"] | {"image_size": 80, "patch_size": 8}}
    options = ["--image-size", "75x75", "--device", "cpu"]
    assert bench("prompt", "--arch", written(small, tmp_path), "--random-weights", *options) == 2
    assert "makes 84×84 pixels of it (height × width), and" in capsys.readouterr().err


def test_images_of_a_decoder_alone_are_refused():
    with pytest.raises(InputError, match="takes no images"):
        PromptBenchConfig(model="x", images=2).limits(RoleConfigs())
