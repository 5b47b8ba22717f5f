"""What a benchmark measures."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict

from vlm.config import BuildConfig, Config, RuntimeConfig
from vlm.config.build import DTYPES
from vlm.errors import InputError, listed
from vlm.options import check_limits, option, same_option
from vlm.ranges import at_least, one_of
from vlm.registry.role_configs import RoleConfigs
from vlm.requests.sampling_params import SamplingParams
from vlm_app.bench.lists import names, numbers, pairs, size
from vlm_app.bench.lists import settings as read_settings
from vlm_app.core.backend_names import is_measured, measured_names

BATCH_SIZES = partial(numbers, option="--batch-size")
LENGTHS = partial(pairs, option="--input-output-len")
LENGTH_LIMITS = ("max_seq_len", "max_encoder_input_len")

COMPUTE_TYPES = ("float32", "int8")  # of CTranslate2


class Limits(TypedDict, total=False):
    """What an engine must hold for a benchmark, as fields of BuildConfig."""

    max_batch_size: int
    max_seq_len: int
    max_encoder_input_len: int


@dataclass(frozen=True)
class SubjectConfig(Config):
    """The model, and how it is measured. Everything that is drawn at random follows from `seed`."""

    arch: str | None = option(None, "With --random-weights: a published shape, or a Hugging Face config.json.")
    model: str | None = option(None, "Instead: a model, as in vlm run.", flags=("--model", "-m"))
    backends: tuple[str, ...] = option(
        (), f"What runs it: {', '.join(measured_names())}; behind a quantization +visual, for that of a visual network,"
        " too, then +kv-int8 or +kv-fp8, for a cache of 8 bits, and +lora-8x16, for 8 adapters of rank 16;"
        " several apart by ','.",
        flags=("--backend",), default="as built, or torch", read=names,
    )  # fmt: skip
    device: str = same_option(RuntimeConfig, "device")
    devices: str | None = same_option(RuntimeConfig, "devices")
    threads: int | None = same_option(RuntimeConfig, "threads")  # of every system on the CPU
    kv_cache_free_gpu_memory_fraction: float = same_option(RuntimeConfig, "kv_cache_free_gpu_memory_fraction")
    cross_kv_cache_fraction: float = same_option(RuntimeConfig, "cross_kv_cache_fraction")
    tp_size: int = same_option(BuildConfig, "tp_size")  # of ours; Hugging Face runs on one device
    encoder_tp_size: int | None = same_option(BuildConfig, "encoder_tp_size")
    pp_size: int = same_option(BuildConfig, "pp_size")
    dtype: str | None = option(
        None, f"Computing type: {', '.join(DTYPES)}.", default="float32 on the CPU, bfloat16 on CUDA"
    )
    repeats: int = option(3, "The median of so many runs counts.", allowed=at_least(1))
    seed: int = option(0, "Of random weights and images.")
    hf: bool = option(  # measure Hugging Face in the same run
        True, "Leave Hugging Face out.", flags=("--no-hf",), read=operator.not_, cli_type=bool
    )
    hf_batch_size: int | None = None  # None: ours
    profile: bool = False  # list the kernels of the first token and of a step

    def __post_init__(self) -> None:
        if (self.arch is None) == (self.model is None):
            raise InputError("give either --model NAME, or --random-weights --arch NAME.")
        check_limits(self, flags=True)
        if unknown := [name for name in self.backends if not is_measured(name)]:
            allowed = listed(measured_names())
            raise InputError(f"--backend holds {listed(unknown)}; allowed are {allowed}, apart by ','.")

    @property
    def runtime(self) -> RuntimeConfig:
        """Returns how engines of ours are run. Raises ConfigError for `device` and `devices`."""
        return RuntimeConfig(device=self.device, devices=self.devices, threads=self.threads, **self.cache_fractions)

    @property
    def cache_fractions(self) -> dict[str, Any]:
        """Returns how large the KV cache is, as fields of RuntimeConfig."""
        names = ("kv_cache_free_gpu_memory_fraction", "cross_kv_cache_fraction")
        return {name: getattr(self, name) for name in names}

    @property
    def beside_others(self) -> bool:
        """Says whether other programs take part, which load a Hugging Face folder."""
        return self.hf

    @property
    def backend_names(self) -> tuple[str, ...]:
        """Returns the backends; the first is told of as vlm's."""
        return self.backends or (BuildConfig.backend,)

    @property
    def subject(self) -> str:
        """Returns what is measured, in words."""
        return self.model or f"{self.arch}, random weights"


@dataclass(frozen=True)
class BenchConfig(SubjectConfig):
    """Pages, one at a time or in batches."""

    batch_size: int = 1
    pages: int = 1  # images in all
    new_tokens: int = option(1000, "Tokens generated a page, exactly.", allowed=at_least(2), sets=("max_seq_len",))
    hf_new_tokens: int = option(
        100, "Tokens of Hugging Face's run; its time a token is taken from them.", allowed=at_least(2)
    )


@dataclass(frozen=True)
class LatencyConfig(BenchConfig):
    """Pages, one at a time, whose steps can be looked into."""

    profile: bool = option(False, "Also list the kernels of first token and step, and how long each takes (CUDA).")


@dataclass(frozen=True)
class ThroughputConfig(BenchConfig):
    """Pages in batches."""

    hf_batch_size: int | None = option(None, "Of Hugging Face, at most.", default="the batch size", allowed=at_least(1))
    batch_size: int = option(64, "Pages decoded at once.", allowed=at_least(1), sets=("max_batch_size",))
    pages: int | None = option(None, "Pages in all.", default="twice the batch", allowed=at_least(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pages is None:
            object.__setattr__(self, "pages", 2 * self.batch_size)


@dataclass(frozen=True)
class RowsConfig(SubjectConfig):
    """Every combination of the lists is a row."""

    batch_sizes: tuple[int, ...] = option(
        (1,), 'At once, several apart by ";".', flags=("--batch-size",), default="1", read=BATCH_SIZES,
        sets=("max_batch_size",),
    )  # fmt: skip
    lengths: tuple[tuple[int, int], ...] = ((64, 64),)  # tokens in, tokens out
    hf_new_tokens: int | None = option(
        None, "Tokens of its run, the rest is extrapolated.", default="all", allowed=at_least(2)
    )
    hf_repeats: int = option(1, "Hugging Face's runs.", allowed=at_least(1))
    settings: tuple[dict[str, Any], ...] = option(
        ({},), 'Of generation, "top_k=50,temperature=0.7"; several apart by ";", ";no_repeat_ngram_size=3": without '
        "any, and with one; what is no number in a JSON object, as generation_config.json has it.",
        default="none", read=partial(read_settings, option="--settings"),
    )  # fmt: skip
    profile: bool = same_option(LatencyConfig, "profile")

    def __post_init__(self) -> None:
        super().__post_init__()
        for flag, values in self._lists.items():
            if min(values) < 1:
                raise InputError(f"{flag} holds {min(values)}; its numbers must be at least 1.")
        if (out := min(new_tokens for _, new_tokens in self.lengths)) < 2:
            raise InputError(
                f"--input-output-len asks for {out} token out; at least 2 tokens out are needed to time one."
            )
        for row in self.rows:
            SamplingParams(num_beams=row.num_beams, **row.settings)

    @property
    def _lists(self) -> dict[str, tuple[int, ...]]:
        return {"--batch-size": self.batch_sizes, "--input-output-len": tuple(itertools.chain(*self.lengths))}

    @property
    def rows(self) -> list[Workload]:
        rows = itertools.product(self.lengths, self.settings, self.batch_sizes)
        return [Workload(lengths, num_beams=1, batch_size=size, settings=own) for lengths, own, size in rows]

    def hf_steps(self, row: Workload) -> int:
        """Returns the tokens of Hugging Face's run."""
        return min(self.hf_new_tokens or row.lengths[1], row.lengths[1])


@dataclass(frozen=True)
class TextBenchConfig(RowsConfig):
    """Texts, through an encoder and a decoder."""

    hf_batch_size: int | None = same_option(ThroughputConfig, "hf_batch_size")
    lengths: tuple[tuple[int, int], ...] = option(
        ((64, 64),), 'Tokens in and out, "60,20;128,20".', flags=("--input-output-len",), default="64,64", read=LENGTHS,
        sets=LENGTH_LIMITS,
    )  # fmt: skip
    min_input_len: int | None = option(
        None, "Tokens in, at least: each text has a length of its own, from here up to that of --input-output-len.",
        default="all have that one", allowed=at_least(1),
    )  # fmt: skip
    num_beams: tuple[int, ...] = option(
        (1,), '1 is greedy, several apart by ";".', default="1", read=partial(numbers, option="--num-beams")
    )
    ctranslate2: str | None = option(
        None, f"CTranslate2 on the CPU in the same run, in this type: {' or '.join(COMPUTE_TYPES)}.",
        default="left out", allowed=one_of(*COMPUTE_TYPES),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        shortest = min(input_len for input_len, _ in self.lengths)
        if self.min_input_len is not None and self.min_input_len > shortest:
            raise InputError(
                f"--min-input-len is {self.min_input_len}; it must not be above the tokens in of --input-output-len,"
                f" {shortest}."
            )
        if self.ctranslate2 is not None and any(self.settings):
            raise InputError("--ctranslate2 is measured without --settings; leave one of them out.")

    @property
    def beside_others(self) -> bool:
        return self.hf or self.ctranslate2 is not None

    @property
    def _lists(self) -> dict[str, tuple[int, ...]]:
        return super()._lists | {"--num-beams": self.num_beams}

    @property
    def rows(self) -> list[Workload]:
        rows = itertools.product(self.lengths, self.num_beams, self.settings, self.batch_sizes)
        return [
            Workload(lengths, beams, size, min_input_len=self.min_input_len, settings=own)
            for lengths, beams, own, size in rows
        ]

    def limits(self, configs: RoleConfigs) -> Limits:
        """Returns what the engine must hold; a beam takes a sequence's place."""
        return {
            "max_batch_size": max(self.batch_sizes) * max(self.num_beams),
            "max_seq_len": max(out for _, out in self.lengths) + 1,
            "max_encoder_input_len": max(length for length, _ in self.lengths),
        }


@dataclass(frozen=True)
class PromptBenchConfig(RowsConfig):
    """Prompts with images, or of text alone."""

    hf_batch_size: int | None = same_option(ThroughputConfig, "hf_batch_size")
    lengths: tuple[tuple[int, int], ...] = option(
        ((32, 128),), 'Tokens of text in, beside the images, and out, "32,128;12,30".', flags=("--input-output-len",),
        default="32,128", read=LENGTHS, sets=LENGTH_LIMITS,
    )  # fmt: skip
    images: int | None = option(None, "In each prompt.", default="1 where the model takes any", allowed=at_least(0))
    image_size: tuple[int, int] | None = option(
        None, "Pictures of this width and height in pixels, which the model's image processor reads within the time:"
        " 1920x1080.", default="pixel values that are ready, of the model's usual size",
        read=partial(size, option="--image-size"),
    )  # fmt: skip
    pixel_size: tuple[int, int] | None = None  # (height, width) of what becomes of such a picture

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size is not None and self.images == 0:
            raise InputError("--image-size is of images, and --images is 0; leave one of them out.")

    def limits(self, configs: RoleConfigs) -> Limits:
        """Returns what the engine of these roles must hold. Raises InputError for images that it does not take."""
        rows, size = self.image_rows(configs), max(self.batch_sizes)
        if configs.encoder is None:
            longest = rows + max(input_len + output_len for input_len, output_len in self.lengths)
            return {"max_batch_size": size, "max_seq_len": longest}
        return {
            "max_batch_size": size,
            "max_seq_len": max(output_len for _, output_len in self.lengths) + 1,
            "max_encoder_input_len": rows + max(input_len for input_len, _ in self.lengths),
        }

    def image_rows(self, configs: RoleConfigs) -> int:
        """Returns how many rows all images of a prompt take."""
        count = self.num_images(configs)
        return count * configs["visual"].rows_of(*self.size_of_pixels(configs)) if count else 0

    def size_of_pixels(self, configs: RoleConfigs) -> tuple[int, int]:
        """Returns the (height, width) of an image's pixel values."""
        return self.pixel_size or configs["visual"].usual_size

    def num_images(self, configs: RoleConfigs) -> int:
        if configs.visual is not None:
            return 1 if self.images is None else self.images
        if self.images or self.image_size:
            flag = "--images" if self.images else "--image-size"
            raise InputError(f"{self.subject} takes no images; leave {flag} out.")
        return 0


@dataclass(frozen=True)
class Workload:
    """One row."""

    lengths: tuple[int, int]
    num_beams: int
    batch_size: int
    min_input_len: int | None = None  # None: all inputs have that length
    settings: dict[str, Any] = field(default_factory=dict)  # of drawing and penalties

    def to_dict(self) -> dict[str, Any]:
        input_len, output_len = self.lengths
        least = {} if self.min_input_len is None else {"min_input_len": self.min_input_len}
        return {
            "batch_size": self.batch_size,
            "num_beams": self.num_beams,
            **({"settings": self.settings} if self.settings else {}),
            **least,
            "input_len": input_len,
            "output_len": output_len,
        }
