"""What a benchmark measures."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from vlm.config import MAX_THREADS, BuildConfig, Config
from vlm.errors import InputError, listed
from vlm.registry.role_configs import RoleConfigs
from vlm_app.backend_names import measured_names


@dataclass(frozen=True)
class SubjectConfig(Config):
    """The model, and how it is measured. Everything that is drawn at random follows from `seed`."""

    arch: str | None = None  # a published shape or a Hugging Face config.json, with random weights
    model: str | None = None  # or a model
    backends: tuple[str, ...] = ()  # by name, or quantized "onnxruntime-int8"; (): as built, or the default one
    device: str = "auto"
    threads: int | None = None  # of every system on the CPU; None: as they take by themselves
    dtype: str | None = None  # None: float32 on the CPU, bfloat16 on CUDA
    repeats: int = 3
    seed: int = 0
    hf: bool = True  # measure Hugging Face in the same run
    hf_batch_size: int | None = None  # None: ours

    def __post_init__(self) -> None:
        if (self.arch is None) == (self.model is None):
            raise InputError("give either --model NAME, or --random-weights --arch NAME.")
        self._at_least(1, "repeats", "hf_batch_size", "threads")
        if self.threads is not None and self.threads > MAX_THREADS:
            raise InputError(f"--threads is {self.threads}; it must be at most {MAX_THREADS}.")
        known = measured_names()
        if unknown := [name for name in self.backends if name not in known]:
            raise InputError(f"--backend holds {listed(unknown)}; allowed are {listed(known)}, apart by ','.")

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")

    @property
    def measured(self) -> tuple[str, ...]:
        """The backends, the first one being what is told of as vlm's."""
        return self.backends or (BuildConfig.backend,)

    @property
    def subject(self) -> str:
        """What is measured, in words."""
        return self.model or f"{self.arch}, random weights"


@dataclass(frozen=True)
class BenchConfig(SubjectConfig):
    """Pages, one at a time or in batches."""

    batch_size: int = 1
    pages: int = 1  # images in all
    new_tokens: int = 1000  # a page, exactly
    hf_new_tokens: int = 100  # tokens of its run; its time a token is taken from them

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "batch_size", "pages")
        self._at_least(2, "new_tokens", "hf_new_tokens")


@dataclass(frozen=True)
class RowsConfig(SubjectConfig):
    """Every combination of the lists is a row."""

    batch_sizes: tuple[int, ...] = (1,)
    lengths: tuple[tuple[int, int], ...] = ((64, 64),)  # tokens in, tokens out
    hf_new_tokens: int | None = None  # None: all; fewer are extrapolated
    hf_repeats: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "hf_repeats")
        self._at_least(2, "hf_new_tokens")
        for option, given in self._lists.items():
            if min(given) < 1:
                raise InputError(f"{option} holds {min(given)}; its numbers must be at least 1.")
        if (out := min(made for _, made in self.lengths)) < 2:
            raise InputError(
                f"--input-output-len asks for {out} token out; at least 2 tokens out are needed to time one."
            )

    @property
    def _lists(self) -> dict[str, tuple[int, ...]]:
        return {"--batch-size": self.batch_sizes, "--input-output-len": tuple(itertools.chain(*self.lengths))}

    @property
    def rows(self) -> list[Workload]:
        return [Workload(lengths, 1, size) for lengths, size in itertools.product(self.lengths, self.batch_sizes)]

    def hf_steps(self, row: Workload) -> int:
        """Tokens of Hugging Face's run."""
        return min(self.hf_new_tokens or row.lengths[1], row.lengths[1])


@dataclass(frozen=True)
class TextBenchConfig(RowsConfig):
    """Texts, through an encoder and a decoder."""

    num_beams: tuple[int, ...] = (1,)

    @property
    def _lists(self) -> dict[str, tuple[int, ...]]:
        return super()._lists | {"--num-beams": self.num_beams}

    @property
    def rows(self) -> list[Workload]:
        return [Workload(*row) for row in itertools.product(self.lengths, self.num_beams, self.batch_sizes)]

    def limits(self, configs: RoleConfigs) -> dict[str, int]:
        """What the engine must hold; a beam takes a sequence's place."""
        return {
            "max_batch_size": max(self.batch_sizes) * max(self.num_beams),
            "max_seq_len": max(out for _, out in self.lengths) + 1,
            "max_encoder_input_len": max(length for length, _ in self.lengths),
        }


@dataclass(frozen=True)
class PromptBenchConfig(RowsConfig):
    """Prompts with images, or of text alone."""

    lengths: tuple[tuple[int, int], ...] = ((32, 128),)  # tokens of text in, beside the images' rows; tokens out
    images: int | None = None  # in each prompt; None: 1 where the model takes any

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "images")

    def limits(self, configs: RoleConfigs) -> dict[str, int]:
        """What the engine of these roles must hold. InputError for images that it does not take."""
        rows, size = self.image_rows(configs), {"max_batch_size": max(self.batch_sizes)}
        if configs.encoder is None:
            return size | {"max_seq_len": rows + max(given + made for given, made in self.lengths)}
        longest, most = max(given for given, _ in self.lengths), max(made for _, made in self.lengths)
        return size | {"max_seq_len": most + 1, "max_encoder_input_len": rows + longest}

    def image_rows(self, configs: RoleConfigs) -> int:
        """Returns how many rows all images of a prompt take."""
        count = self.num_images(configs)
        return count * configs.visual.max_rows if count else 0

    def num_images(self, configs: RoleConfigs) -> int:
        if configs.visual is not None:
            return 1 if self.images is None else self.images
        if self.images:
            raise InputError(f"{self.subject} takes no images; leave --images out.")
        return 0


@dataclass(frozen=True)
class Workload:
    """One row."""

    lengths: tuple[int, int]
    num_beams: int
    batch_size: int

    def to_dict(self) -> dict[str, int]:
        given, made = self.lengths
        return {"batch_size": self.batch_size, "num_beams": self.num_beams, "input_len": given, "output_len": made}
