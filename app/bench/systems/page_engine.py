"""The engine of a job over documents: a model's, or one of random weights with a tokenizer for them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from vlm.artifacts.progress import Progress
from vlm.backends.devices import chosen_devices, resolve_device
from vlm.build.builder import build_engine
from vlm.build.kinds import family_of
from vlm.build.limits import resolve_limits
from vlm.build.locate import locate
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig
from vlm.convert.roles import role_configs
from vlm.errors import InputError, LimitError
from vlm.parallel.environment import rank_among
from vlm.registry.catalogs import match_family
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import FamilySpec
from vlm_app.bench.ocr_config import OcrBenchConfig
from vlm_app.bench.systems.session import default_dtype
from vlm_app.bench.systems.subject import VERBS, kind_of
from vlm_app.core.architecture import hf_config, read_arch
from vlm_app.core.load_options import LoadOptions
from vlm_app.ocr.readers.engines import EngineConfig

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # Nougat's, at its ids
SYLLABLES = [f"{first}{second}" for first in "bdfgklmnprstvz" for second in "aeiou"]


def page_engine(config: OcrBenchConfig, scratch: Path, progress: Progress | None = None) -> EngineConfig:
    """Resolves the engine as `vlm ocr` does; one of random weights is built below `scratch`.

    Raises InputError for a model that reads no images, LimitError for more tokens than it has places for.
    """
    devices = chosen_devices(config.devices, config.device)
    runs_on = resolve_device(devices[0]).type
    if config.arch is not None:
        model = str(_random_engine(config, config.arch, scratch, on=runs_on, progress=progress))
    else:
        assert config.model is not None  # there is one of the two
        model = config.model
        source = locate(model)
        if (spec := family_of(source.path, source.kind)) is not None:
            _check_reads_images(config.subject, spec)
    values = {"dtype": config.dtype, "max_batch_size": config.batch_size, "threads": config.threads}
    values |= {"batch_invariant": config.batch_invariant, **config.cache_fractions}
    options = LoadOptions.from_dict({"device": devices[0]} | {n: v for n, v in values.items() if v is not None})
    return EngineConfig.resolved(model, devices, options, workers=None, progress=progress)


def _check_reads_images(subject: str, spec: FamilySpec) -> None:
    if "visual" not in spec.roles:
        what, verb = VERBS[kind_of(spec)]
        raise InputError(f"{subject} takes {what}, no pages; use {verb}.")


def _random_engine(config: OcrBenchConfig, arch: str, scratch: Path, on: str, progress: Progress | None) -> Path:
    rank_among(1, config.subject)  # refused before a build
    hf = hf_config(arch)
    spec = match_family(hf)
    _check_reads_images(config.subject, spec)
    configs = role_configs(spec, hf)
    size = config.batch_size or (EngineConfig.CUDA_BATCH_SIZE if on == "cuda" else BuildConfig.max_batch_size)
    build = BuildConfig(dtype=config.dtype or default_dtype(resolve_device(on)), max_batch_size=size)
    _check_length(config, build, configs)
    tokenizer = write_tokenizer(scratch / "tokenizer.json", configs["decoder"].vocab_size)
    checkpoint = random_checkpoint(
        read_arch(arch), scratch / "checkpoint", seed=config.seed, dtype=build.dtype, processor_files=(tokenizer,)
    )
    engine = build_engine(checkpoint, scratch / "engine", build, progress=progress)
    shutil.rmtree(checkpoint.path)  # as large as the engine
    return engine.path


def _check_length(config: OcrBenchConfig, build: BuildConfig, configs: RoleConfigs) -> None:
    most = resolve_limits(build, configs).max_seq_len - 1
    if (config.max_new_tokens or 0) > most:
        raise LimitError(f"--tokens is {config.max_new_tokens}; {config.subject} generates at most {most} a page.")


def write_tokenizer(path: Path, vocab_size: int) -> Path:
    """Writes a tokenizer whose tokens, but for the special ones, are words. It knows no text: of a prompt each tag
    (<image>, <|im_end|>) and what lies between two is one token."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokens = [*SPECIAL, *(f"Ġ{_word(number)}" for number in range(vocab_size - len(SPECIAL)))]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", fuse_unk=True))
    tags = pre_tokenizers.Split(Regex("<[^<>]+>"), "isolated")
    tokenizer.pre_tokenizer = tags  # pyright: ignore[reportAttributeAccessIssue] - it is a property
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue] - it is a property
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(path))
    return path


def _word(number: int) -> str:
    """Returns a word that no other number has."""
    rest, last = divmod(number, len(SYLLABLES))
    return (_word(rest - 1) if rest else "") + SYLLABLES[last]
