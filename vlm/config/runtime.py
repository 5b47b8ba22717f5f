"""How an engine is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vlm.config.base import Config, errors_in, raise_errors
from vlm.errors import NAME_A_PLACE, listed
from vlm.options import option
from vlm.packaged import adapter_folder, is_adapter_name
from vlm.ranges import Range, at_least, one_of

KV_CACHE_DTYPES = ("int8", "fp8")  # of a cache of 8 bits
MAX_SPECULATIVE_TOKENS = 16  # a step's matrix products take little longer for a few rows more
MAX_THREADS = 1024  # OpenMP ends the process where it cannot start them
PART = Range(0, 1, low_open=True, high_open=True, words="it must lie between 0 and 1")  # of a GPU's memory


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """How an engine is run."""

    device: str = option("auto", "auto, cpu, cuda or cuda:N.")
    devices: str | None = option(
        None, "Of an engine for several ranks, each one's, in their order: cuda:0,cuda:1, or all.", default="--device"
    )
    block_size: int = option(16, "Tokens a block of the KV cache.", cli=False, allowed=at_least(1))
    burst: int | None = option(
        None, "Decode steps between two looks of the host, at most.", cli=False, allowed=at_least(1),
        default="16 on a GPU; on a CPU 1, and some of a small model: it hides nothing there, and what arrives waits",
    )  # fmt: skip
    kv_cache_free_gpu_memory_fraction: float = option(
        0.9, "The cache's share of a GPU's memory that is free once the weights are loaded.", allowed=PART
    )
    cross_kv_cache_fraction: float = option(
        0.5, "The share of a GPU's cache for keys and values of the encoder.", allowed=PART
    )
    max_kv_blocks: int | None = option(
        None, "Blocks of the KV cache.", cli=False, allowed=at_least(1),
        default="from the fraction (CUDA) or for a full batch (CPU)",
    )  # fmt: skip
    max_batch_size: int | None = option(
        None, "Sequences decoded at once, at most.", cli=False, allowed=at_least(1), default="as built"
    )
    max_encoder_batch_size: int = option(8, "Images encoded in one pass.", cli=False, allowed=at_least(1))
    max_encoder_tokens: int = option(
        16384, "Tokens of texts, or patches of images of any size, encoded in one pass.", cli=False, allowed=at_least(1)
    )
    max_prefill_tokens: int = option(
        8192, "Tokens of prompts between two bursts; longer ones are taken in chunks.", cli=False, allowed=at_least(1)
    )
    prefix_sharing: bool = option(True, "Equal beginnings of prompts are computed and kept once.", cli=False)
    encoder_cache_size: int = option(
        256, "Images whose features are kept for their next use.", cli=False,
        allowed=at_least(0, "it must be 0 (off) or more"),
    )  # fmt: skip
    kv_cache_dtype: str | None = option(
        None, "Of keys and values in the cache: int8 or fp8 keep them in 8 bits, with a scale a token and head.",
        default="as the engine computes", allowed=one_of(*KV_CACHE_DTYPES),
    )  # fmt: skip
    num_speculative_tokens: int = option(
        0, "Tokens that prompt lookup proposes for an output in a decode step, at most: what followed the same words in"
        " its own text or the encoder's. One pass verifies them, and outputs stay the same. 0: none.",
        allowed=Range(0, MAX_SPECULATIVE_TOKENS, words=f"it must be between 0 (off) and {MAX_SPECULATIVE_TOKENS}"),
    )  # fmt: skip
    batch_invariant: bool = option(
        False, "On a GPU a request's tokens depend, to the bit, on nothing that it is batched with: every pass has"
        " the rows of a full one, texts and prompts are computed one at a time.",
        flags=("--batch-invariant/--no-batch-invariant",),
    )  # fmt: skip
    lora: tuple[str, ...] = option(
        (), "An adapter (LoRA or IA3, packaged or a folder of PEFT's) that requests may name: NAME=FOLDER."
    )
    max_loras: int | None = option(
        None, "Adapters on the device at once; requests of others wait until one of these is not in use.",
        default="those of --lora", allowed=at_least(1), only_with="lora",
    )  # fmt: skip
    max_cpu_loras: int | None = option(
        None, "Adapters that there is room for on the host, which take turns on the device.",
        default="--max-loras, or those of --lora", allowed=at_least(1), only_with="lora",
    )  # fmt: skip
    max_lora_rank: int | None = option(
        None, "The highest rank of an adapter that there is room for.", default="that of --lora", allowed=at_least(1),
        only_with="lora",
    )  # fmt: skip
    prompt_table: str | None = option(
        None, "Tuned prompts whose tasks requests may name: a folder that vlm convert or PEFT wrote, or a .npy file of"
        " floats [tasks, rows, hidden].",
    )  # fmt: skip
    cuda_graphs: bool = option(True, "Replay a decode step as a CUDA graph.", cli=False)
    threads: int | None = option(
        None, "CPU threads at most.", default="$OMP_NUM_THREADS, or the usable cores", allowed=Range(1, MAX_THREADS)
    )

    def __post_init__(self) -> None:
        errors = errors_in(self)
        if self.devices is not None and self.device != type(self).device:
            errors["devices"] = "device and devices are both given, leave one of the two out"
        if self.prompt_table == "":
            errors["prompt_table"] = f"prompt_table is empty, {NAME_A_PLACE}"
        if "lora" not in errors and (wrong := _adapter_errors(self.lora)):
            errors["lora"] = "; ".join(wrong)
        raise_errors(errors, "device")

    @property
    def lora_folders(self) -> dict[str, Path]:
        """Returns the folders of adapters by their names, in the order of their numbers."""
        return {name: adapter_folder(folder) for name, _, folder in (each.partition("=") for each in self.lora)}

    def on(self, device_type: str) -> RuntimeConfig:
        """Returns what holds on a type of device: the CPU is never batch-invariant; a GPU that is takes each text and
        each prompt in passes of its own, keeps nothing of them for another one, and drafts nothing: a step's rows would
        be more at times."""
        if not self.batch_invariant or device_type == "cpu":
            return replace(self, batch_invariant=False)
        return replace(self, max_encoder_tokens=1, prefix_sharing=False, num_speculative_tokens=0)


def _adapter_errors(lora: tuple[str, ...]) -> list[str]:
    """Returns what is wrong with adapters that are named NAME=FOLDER."""
    parts = [each.partition("=") for each in lora]
    bad = [each for each, (name, _, folder) in zip(lora, parts, strict=True) if not (name and folder)]
    names = [name for name, _, _ in parts]
    odd = [name for name in names if name and not is_adapter_name(name)]
    again = sorted({name for name in names if names.count(name) > 1})
    return [
        *([f"lora is {listed(map(repr, bad))}, it must be NAME=FOLDER"] if bad else []),
        *([f"lora names {listed(map(repr, odd))}, a name is of printable words with a letter or digit"] if odd else []),
        *([f"lora names {listed(again)} twice, give each adapter a name of its own"] if again else []),
    ]
