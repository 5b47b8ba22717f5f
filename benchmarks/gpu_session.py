"""Runs a list of measurements on a GPU, the most wanted first, within a time that is given.

    python benchmarks/gpu_session.py --list                                       what there is, and its seconds
    python benchmarks/gpu_session.py --budget 560 --out results                   all, as far as the time goes
    python benchmarks/gpu_session.py --budget 560 --out results nllb-200 opus-mt  these alone
    python benchmarks/gpu_session.py --budget 560 --out results --after t5-small  those that follow
    python benchmarks/gpu_session.py --budget 560 --out results --gpus 4          on four GPUs
    python benchmarks/gpu_session.py --build --engines engines --gpus 4           only the engines that they need

With several GPUs, those that need the most come first, each on GPUs, and their share of the cores, that no other one
has meanwhile. Engines that take minutes to make are made before, side by side, and deleted when nothing needs them any
more; in a folder of `--engines` they stay, and those that lie there are taken as they are. Each is a `vlm bench`
command of its own, whose result is written to `results/NAME.json` as soon as it is there, what it printed to
`results/NAME.log`. One that fails stops none of the others; where Hugging Face took part it is run again without it. A
command starts where its seconds are left, and is ended when they are over; shorter ones further down take what is left.
`results/summary.json` says what ran, what failed and what had no time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Condition, Lock

VLM = (sys.executable, "-m", "vlm_app.cli.main")
MAPPINGS = {
    "tp4": "--tp-size 4",
    "pp4": "--pp-size 4",
    "tp2-pp2": "--tp-size 2 --pp-size 2",
    "tp2": "--tp-size 2",
    "": "",
}
# the shapes that several mappings run: name, shape and type, the lengths in and out
SPLIT = (
    ("llava-1.5-13b", "prompt", "--dtype float16", "32,128"),
    ("flan-t5-xxl", "text", "--dtype bfloat16", "350,128"),
    ("blip2-flan-t5-xl", "prompt", "--dtype bfloat16", "12,30"),
)
# with larger weights layers of so many do not agree with themselves in 16 bits: no ways to split them could be compared
# rows of how tokens are chosen: the likeliest, penalized, drawn by what people set
SETTINGS = ";no_repeat_ngram_size=3;temperature=1;temperature=1,top_k=50;temperature=0.7,top_k=50,top_p=0.9"
# rows of what is said about tokens: nothing, a bias, what the input has
RULES = ';{"sequence_bias":[[[13],-5.0]]};encoder_repetition_penalty=1.2;encoder_no_repeat_ngram_size=4'
LIMITS = "--max-batch-size 32 --max-seq-len 1024 --initializer-range 0.005"


def _named(arch: str, mapping: str) -> str:
    return "-".join(filter(None, (arch, mapping)))


# name, what stands behind `vlm build`
ENGINES = {
    _named(arch, mapping): " ".join(f"--arch {arch} --random-weights {dtype} {LIMITS} {options}".split())
    for arch, _, dtype, _ in SPLIT
    for mapping, options in MAPPINGS.items()
}
# name, the seconds it may take, what stands behind `vlm bench`
COMMANDS = (
    *(
        (_named(arch, mapping), 200,
         f"{kind} --model {_named(arch, mapping)} --batch-size 1;32 --input-output-len {lengths} --repeats 3 --no-hf")
        for mapping in MAPPINGS
        for arch, kind, _, lengths in SPLIT
    ),
    ("llava-1.5-7b-quantized", 330,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 "
     "--backend torch,torch-int4,torch-int8,torch-fp8 --batch-size 1 --input-output-len 32,128 "
     "--repeats 3 --profile --no-hf"),
    ("llava-1.5-7b-fp8-batch-32", 160,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 --backend torch,torch-fp8+kv-fp8 "
     "--batch-size 32 --input-output-len 32,128 --repeats 3 --profile --no-hf"),
    ("llava-1.5-7b-prompt", 240,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 --batch-size 1;8;32 "
     "--input-output-len 32,128 --hf-new-tokens 32 --repeats 3 --hf-repeats 1 --profile"),
    ("flan-t5-xl-int8", 100,
     "text --arch flan-t5-xl --random-weights --dtype bfloat16 --backend torch,torch-int8 "
     "--input-output-len 350,128 --no-hf --repeats 5 --profile"),
    ("gpt2-medium-prompt", 120,
     "prompt --arch gpt2-medium --random-weights --dtype float16 --batch-size 1;32 "
     "--input-output-len 128,128 --hf-new-tokens 64 --repeats 5 --hf-repeats 3 --profile"),
    ("gpt2-medium-settings", 120,
     "prompt --arch gpt2-medium --random-weights --dtype float16 --batch-size 1;32 --input-output-len 128,128 "
     f"--settings {SETTINGS} --hf-new-tokens 16 --repeats 5 --hf-repeats 1"),
    ("bart-large-cnn-settings", 120,
     "text --arch bart-large-cnn --random-weights --dtype bfloat16 --batch-size 128 --input-output-len 350,128 "
     f"--settings {SETTINGS} --hf-new-tokens 16 --repeats 5 --hf-repeats 1"),
    ("bart-large-cnn-beams", 90,  # as its publication has it
     "text --arch bart-large-cnn --random-weights --dtype bfloat16 --batch-size 32 --input-output-len 350,128 "
     "--num-beams 4 --settings ;no_repeat_ngram_size=3 --hf-new-tokens 16 --repeats 5 --hf-repeats 1"),
    ("opus-mt-beams", 90,  # as its publication has it
     "text --arch opus-mt-de-en --random-weights --dtype bfloat16 --batch-size 1;128 --input-output-len 64,64 "
     '--num-beams 4 --settings ;{"bad_words_ids":[[58100]],"renormalize_logits":true} --hf-new-tokens 16 '
     "--repeats 5 --hf-repeats 1"),
    ("t5-small-rules", 60,
     "text --arch t5-small --random-weights --dtype bfloat16 --batch-size 1;128 --input-output-len 64,64 "
     f"--settings {RULES} --hf-new-tokens 16 --repeats 5 --hf-repeats 1"),
    ("bart-large-cnn-lora", 75,
     "text --arch bart-large-cnn --random-weights --dtype bfloat16 --backend torch,torch+lora-8x16 "
     "--batch-size 128 --input-output-len 350,128 --repeats 5 --profile --no-hf"),
    ("bart-large-cnn-260-440", 90,
     "text --arch bart-large-cnn --random-weights --dtype bfloat16 --batch-size 32;64;128 "
     "--input-output-len 440,128 --min-input-len 260 --hf-new-tokens 32 --repeats 5 "
     "--profile"),
    ("flan-t5-xl-260-440", 90,
     "text --arch flan-t5-xl --random-weights --dtype bfloat16 --batch-size 32;64;128 "
     "--input-output-len 440,128 --min-input-len 260 --no-hf --repeats 5 --profile"),
    ("bart-large-cnn-batch-128", 80,
     "text --arch bart-large-cnn --random-weights --dtype bfloat16 --batch-size 128 --input-output-len 350,128 "
     "--hf-new-tokens 24 --repeats 5 --hf-repeats 3 --profile"),
    ("flan-t5-xl-batch-128", 100,
     "text --arch flan-t5-xl --random-weights --dtype bfloat16 --batch-size 128 --input-output-len 350,128 "
     "--hf-new-tokens 16 --repeats 5 --hf-repeats 2 --profile"),
    ("t5-3b-batch-128", 100,
     "text --arch t5-3b --random-weights --dtype bfloat16 --batch-size 128 --input-output-len 350,128 "
     "--hf-new-tokens 16 --repeats 5 --hf-repeats 2 --profile"),
    ("blip2-flan-t5-xl-prompt", 120,
     "prompt --arch blip2-flan-t5-xl --random-weights --dtype bfloat16 --batch-size 1;8;32 "
     "--input-output-len 12,30 --repeats 5 --hf-repeats 3"),
    ("nougat-base-throughput", 110,
     "throughput --arch nougat-base --random-weights --dtype bfloat16 --batch-size 128 --new-tokens 1000 "
     "--hf-new-tokens 100 --repeats 5"),
    ("t5-small-batch-128", 70,
     "text --arch t5-small --random-weights --dtype bfloat16 --batch-size 128 --input-output-len 64,64 "
     "--hf-new-tokens 64 --repeats 5 --hf-repeats 3 --profile"),
    ("nougat-base-latency", 90,
     "latency --arch nougat-base --random-weights --dtype bfloat16 --new-tokens 1000 --hf-new-tokens 100 "
     "--repeats 3 --profile"),
    ("llava-1.5-7b-lora", 240,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 --backend torch,torch+lora-1x16 --batch-size 1 "
     "--input-output-len 32,128 --repeats 5 --profile --no-hf"),
    ("ocr-nougat-base-4-devices", 180,
     "ocr --arch nougat-base --random-weights --kinds png,jpeg --documents 256 --pages-per-document 8 "
     "--batch-size 128 --tokens 1000 --repeats 1 --devices cuda:0,cuda:1,cuda:2,cuda:3"),
    ("ocr-nougat-base-2-devices", 150,
     "ocr --arch nougat-base --random-weights --kinds png,jpeg --documents 128 --pages-per-document 8 "
     "--batch-size 128 --tokens 1000 --repeats 1 --devices cuda:0,cuda:1"),
    ("ocr-nougat-base-1-device", 120,
     "ocr --arch nougat-base --random-weights --kinds png,jpeg --documents 64 --pages-per-document 8 "
     "--batch-size 128 --tokens 1000 --repeats 1"),
    ("serve-mini-llava-4-replicas", 120,
     "serve --model mini-llava --images 1 --request-rate inf --max-concurrency 480 --num-prompts 3000 --output-len 200 "
     "-- --devices cuda:0,cuda:1,cuda:2,cuda:3"),
    ("serve-mini-llava-2-replicas", 90,
     "serve --model mini-llava --images 1 --request-rate inf --max-concurrency 240 --num-prompts 1500 --output-len 200 "
     "-- --devices cuda:0,cuda:1"),
    ("serve-mini-llava-1-replica", 90,
     "serve --model mini-llava --images 1 --request-rate inf --max-concurrency 240 --num-prompts 1500 --output-len 200 "
     "-- --devices cuda:0"),
    ("nllb-200-600m-text", 80,
     "text --arch nllb-200-600m --random-weights --dtype bfloat16 --batch-size 1;128 "
     "--input-output-len 64,64 --hf-new-tokens 32 --repeats 5 --hf-repeats 3"),
    ("opus-mt-text", 60,
     "text --arch opus-mt-de-en --random-weights --dtype bfloat16 --batch-size 1;128 "
     "--input-output-len 64,64 --hf-new-tokens 32 --repeats 5 --hf-repeats 3"),
    ("trocr-base-throughput", 80,
     "throughput --arch trocr-base --random-weights --dtype bfloat16 --batch-size 256 --pages 1024 "
     "--new-tokens 32 --hf-new-tokens 32 --repeats 3"),
    ("donut-base-throughput", 90,
     "throughput --arch donut-base --random-weights --dtype bfloat16 --batch-size 32 --pages 64 "
     "--new-tokens 300 --hf-batch-size 8 --hf-new-tokens 60 --repeats 3"),
    ("florence-2-large-prompt", 100,
     "prompt --arch florence-2-large --random-weights --dtype bfloat16 --batch-size 1;32 "
     "--input-output-len 12,128 --image-size 1024x768 --hf-new-tokens 32 --repeats 3"),
    ("lightonocr-1b-prompt", 300,
     "prompt --arch lightonocr-1b --random-weights --dtype bfloat16 --batch-size 1;64 "
     "--input-output-len 16,800 --image-size 1190x1540 --hf-batch-size 4 --hf-new-tokens 64 "
     "--repeats 3 --profile"),
    ("lightonocr-1b-fp8", 160,
     "prompt --arch lightonocr-1b --random-weights --dtype bfloat16 --backend torch-fp8+kv-fp8 --batch-size 64 "
     "--input-output-len 16,800 --image-size 1190x1540 --no-hf --repeats 3 --profile"),
    ("lightonocr-1b-fp8-visual", 160,
     "prompt --arch lightonocr-1b --random-weights --dtype bfloat16 --backend torch-fp8+visual+kv-fp8 --batch-size 64 "
     "--input-output-len 16,800 --image-size 1190x1540 --no-hf --repeats 3 --profile"),
    ("qwen2.5-vl-3b-640x360", 220,
     "prompt --arch qwen2.5-vl-3b --random-weights --dtype bfloat16 --batch-size 32 "
     "--input-output-len 32,512 --image-size 640x360 --hf-new-tokens 48 --repeats 3 --profile"),
    ("qwen2.5-vl-3b-1920x1080", 220,
     "prompt --arch qwen2.5-vl-3b --random-weights --dtype bfloat16 --batch-size 32 "
     "--input-output-len 32,128 --image-size 1920x1080 --hf-batch-size 8 --hf-new-tokens 32 "
     "--repeats 3 --profile"),
    ("qwen2.5-vl-3b-1920x1080-512", 300,
     "prompt --arch qwen2.5-vl-3b --random-weights --dtype bfloat16 --batch-size 32 "
     "--input-output-len 32,512 --image-size 1920x1080 --hf-batch-size 8 --hf-new-tokens 32 "
     "--repeats 3 --profile"),
    ("pix2struct-base-throughput", 70,
     "throughput --arch pix2struct-base --random-weights --dtype bfloat16 --batch-size 64 "
     "--new-tokens 128 --hf-batch-size 16 --hf-new-tokens 64 --repeats 3"),
    ("granite-docling-prompt", 200,
     "prompt --arch granite-docling-258m --random-weights --dtype bfloat16 --batch-size 1;64 "
     "--input-output-len 96,800 --image-size 1190x1540 --hf-batch-size 8 --hf-new-tokens 64 "
     "--repeats 3"),
    ("smolvlm-256m-prompt", 200,
     "prompt --arch smolvlm-256m --random-weights --dtype bfloat16 --batch-size 1;64 "
     "--input-output-len 96,800 --image-size 1190x1540 --hf-batch-size 8 --hf-new-tokens 64 "
     "--repeats 3"),
    ("ocr-lightonocr-1b", 240,
     "ocr --arch lightonocr-1b --random-weights --dtype bfloat16 --kinds png,jpeg --documents 64 "
     "--pages-per-document 4 --batch-size 64 --tokens 800 --repeats 1"),
    ("ocr-donut-base", 180,
     "ocr --arch donut-base --random-weights --dtype bfloat16 --kinds png,jpeg --documents 64 "
     "--pages-per-document 4 --batch-size 32 --tokens 300 --repeats 1"),
    ("madlad400-3b-text", 200,
     "text --arch madlad400-3b --random-weights --dtype bfloat16 --batch-size 1;32 "
     "--input-output-len 64,64 --hf-new-tokens 24 --repeats 3 --hf-repeats 1"),
    ("pegasus-large-text", 100,
     "text --arch pegasus-large --random-weights --dtype bfloat16 --batch-size 1;128 "
     "--input-output-len 350,64 --hf-new-tokens 32 --repeats 3 --hf-repeats 1"),
    ("t5gemma-2b-2b-text", 240,
     "text --arch t5gemma-2b-2b --random-weights --dtype bfloat16 --batch-size 1;32 "
     "--input-output-len 350,128 --hf-new-tokens 24 --repeats 3 --hf-repeats 1"),
)  # fmt: skip
WITHOUT_HF = "--no-hf"
ALONE = ("ocr", "serve")  # never beside it


@dataclass(frozen=True)
class Outcome:
    """What became of a measurement."""

    name: str
    status: str  # "ran", "ran without Hugging Face", "failed", "timed out", "no time left", "too few GPUs"
    seconds: float = 0.0
    says: str = ""  # the last line that a failure printed


@dataclass(frozen=True)
class Measurement:
    """Holds a command of `vlm bench`, and the seconds that it may take."""

    name: str
    seconds: int
    command: str

    @property
    def engine(self) -> str | None:
        """Returns the name of the engine that is made for it, None where it makes its own."""
        name = self._options.get("--model", "")
        return name if name in ENGINES else None

    @property
    def gpus(self) -> int:
        """Returns how many GPUs it needs: its ranks, or its devices."""
        options = self._options | _pairs(ENGINES.get(self.engine or "", ""))
        ranks = int(options.get("--tp-size", 1)) * int(options.get("--pp-size", 1))
        return max(ranks, len(options.get("--devices", "").split(",")))

    @property
    def _options(self) -> dict[str, str]:
        return _pairs(self.command)

    def words(self, result: Path) -> list[str]:
        """Returns what stands behind `vlm`; what stands behind `--` is for another command."""
        kind, *options = self.command.split()
        return ["bench", kind, "--json", str(result.resolve()), *options]


class Gpus:
    """The GPUs by their numbers, each of which one measurement has at a time."""

    def __init__(self, numbers: list[str]):
        self._free, self._changed = numbers, Condition()

    @contextlib.contextmanager
    def taken(self, count: int) -> Iterator[str]:
        """Waits for so many, and gives their numbers as CUDA_VISIBLE_DEVICES names them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            own, self._free = self._free[:count], self._free[count:]
        try:
            yield ",".join(own)
        finally:
            with self._changed:
                self._free = sorted([*self._free, *own])
                self._changed.notify_all()


class Engines:
    """Makes the engines of measurements in a folder, side by side, from when it is made on."""

    def __init__(self, folder: Path, wanted: list[Measurement], *, keep: bool):
        self.folder, self.keep = folder, keep
        self._uses = [each.engine for each in wanted if each.engine]
        names = list(dict.fromkeys(self._uses))
        # one takes some three cores: numbers are drawn by one, turned into the type and written by others
        self._pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 3))
        self._made: dict[str, Future[bool]] = {name: self._pool.submit(self._make, name) for name in names}

    def _make(self, name: str) -> bool:
        """Makes one where there is none; False where that fails, which it prints."""
        if (self.folder / name / "manifest.json").exists():
            return True
        began = time.monotonic()
        options = ENGINES[name].split()
        done = subprocess.run(
            [*VLM, "build", *options, "-o", str(self.folder / name)], capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - began
        print(f"{name}: {done.stderr.strip() if done.returncode else f'made in {seconds:.0f} s'}", flush=True)
        return not done.returncode

    def wait(self) -> bool:
        """Waits for all; says whether each could be made."""
        return all(made.result() for made in self._made.values())

    def is_there(self, measurement: Measurement) -> bool:
        """Waits for a measurement's engine; says whether it could be made, or none is needed."""
        return measurement.engine is None or self._made[measurement.engine].result()

    def release(self, measurement: Measurement) -> None:
        """Deletes a measurement's engine where no further one needs it: they are large."""
        if (name := measurement.engine) is None or self.keep:
            return
        self._uses.remove(name)
        if name not in self._uses:
            shutil.rmtree(self.folder / name, ignore_errors=True)


@dataclass
class Session:
    """Runs measurements on GPUs until `end`, a time of the monotonic clock; results go to `out`."""

    out: Path
    end: float
    numbers: list[str]
    engines: Engines
    outcomes: list[Outcome] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def run(self, wanted: list[Measurement]) -> None:
        """Runs each, those that need the most GPUs first, on the next ones that are free."""
        gpus = Gpus(self.numbers)
        order = sorted(wanted, key=lambda each: -each.gpus)
        with ThreadPoolExecutor(len(self.numbers)) as pool:
            running: list[Future[None]] = []
            for each in order:
                if each.gpus > len(self.numbers):
                    self._note(Outcome(each.name, "too few GPUs"))
                    continue
                # taken here, so that the next one that needs many does not wait behind those that need few
                taken = contextlib.ExitStack()
                visible = taken.enter_context(gpus.taken(each.gpus))
                running.append(pool.submit(self._measure, each, visible, taken))
            for future in running:
                future.result()

    def _measure(self, each: Measurement, visible: str, taken: contextlib.ExitStack) -> None:
        with taken:
            self._note(self._measured(each, visible))
            self.engines.release(each)

    def _note(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            print(_line(outcome), flush=True)
            text = json.dumps([asdict(each) for each in self.outcomes], indent=2)
            (self.out / "summary.json").write_text(text + "\n")

    def _measured(self, each: Measurement, visible: str) -> Outcome:
        """Runs a measurement where its seconds are left, and again without Hugging Face where it fails with it."""
        if not self.engines.is_there(each):
            return Outcome(each.name, "failed", says="its engine could not be made")
        if self.end - time.monotonic() < each.seconds:
            return Outcome(each.name, "no time left")
        cores = _cores([self.numbers.index(number) for number in visible.split(",")], len(self.numbers))
        places = {"out": self.out, "visible": visible, "cores": cores, "folder": self.engines.folder}
        outcome = _run(each, **places)
        left, alone = self.end - time.monotonic(), each.command.startswith(ALONE) or WITHOUT_HF in each.command
        if outcome.status != "failed" or alone or left < each.seconds:
            return outcome
        again = _run(replace(each, command=f"{each.command} {WITHOUT_HF}"), **places)
        if again.status != "ran":
            return again
        return Outcome(each.name, "ran without Hugging Face", outcome.seconds + again.seconds, outcome.says)


def _pairs(command: str) -> dict[str, str]:
    """Returns each word of a command with the one behind it: an option with its value."""
    return dict(itertools.pairwise(command.split()))


def _numbers(gpus: int) -> list[str]:
    """Returns the GPUs' numbers: the first ones, of those that CUDA_VISIBLE_DEVICES names where it does."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:gpus] if named else [str(number) for number in range(gpus)]


def _cores(places: list[int], count: int) -> set[int]:
    """Returns the cores for GPUs at these places of so many: each has an equal share of those that there are."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // count)
    return {core for place in places for core in cores[place * each : (place + 1) * each]} or set(cores)


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; 1 where anything failed."""
    options = _options(arguments)
    wanted = _wanted(options.names, options.after)
    if options.list:
        for each in wanted:
            print(f"{each.name} ({each.seconds} s): vlm bench {_shown(each.command)}")
        return 0
    with contextlib.ExitStack() as stack:
        folder = options.engines or Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        folder.mkdir(parents=True, exist_ok=True)
        fitting = [each for each in wanted if each.gpus <= options.gpus]
        engines = Engines(folder, fitting, keep=options.engines is not None)
        if options.build:
            return int(not engines.wait())
        options.out.mkdir(parents=True, exist_ok=True)
        session = Session(options.out, time.monotonic() + options.budget, _numbers(options.gpus), engines)
        session.run(wanted)
    _print_summary(session.outcomes)
    return int(any(outcome.status in ("failed", "timed out") for outcome in session.outcomes))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of measurements, or how they begin (default: all)")
    parser.add_argument("--after", default="", help="only those that follow this one")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds of all together")
    parser.add_argument("--gpus", type=int, default=1, help="that are there, each for a measurement at a time")
    parser.add_argument("--out", type=Path, default=Path("gpu-session"), help="where results go")
    parser.add_argument(
        "--engines", type=Path, help="folder of engines, which stay there (default: one that ends with it)"
    )
    parser.add_argument("--build", action="store_true", help="make the engines and measure nothing")
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    return parser.parse_args(arguments)


def _wanted(names: list[str], after: str) -> list[Measurement]:
    """Returns the measurements that are asked for, in their order. Exits for a name that there is not."""
    known = [Measurement(*each) for each in COMMANDS]
    for begin in (*names, after):
        if not any(each.name.startswith(begin) for each in known):
            sys.exit(f"no measurement is called {begin!r}; there are {', '.join(each.name for each in known)}.")
    first = 1 + max(i for i, each in enumerate(known) if each.name.startswith(after)) if after else 0
    return [each for each in known[first:] if not names or each.name.startswith(tuple(names))]


def _run(each: Measurement, *, out: Path, visible: str, cores: set[int], folder: Path) -> Outcome:
    """Runs one command in the folder of engines, on these cores, which sees the GPUs of these numbers. Its result has
    the name that is looked for once it is whole."""
    part, log = out / f"{each.name}.json.part", out / f"{each.name}.log"
    print(f"\n$ vlm bench {_shown(each.command)}", flush=True)
    began = time.monotonic()
    # engines of many gigabytes lie there, which a command that is ended leaves behind
    with log.open("a") as file, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(
            [*VLM, *each.words(part)],
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=folder,
            env=os.environ | {"TMPDIR": scratch, "CUDA_VISIBLE_DEVICES": visible},
        )
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(process.pid, cores)
        try:
            status = "ran" if process.wait(timeout=each.seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "timed out"
        finally:
            _end(process)
    if status == "ran":
        part.replace(out / f"{each.name}.json")
    else:
        part.unlink(missing_ok=True)
    lines = log.read_text(errors="replace").strip().splitlines()
    if status == "ran":
        print("\n".join(lines[-40:]))
    seconds = time.monotonic() - began
    return Outcome(each.name, status, seconds, "" if status == "ran" or not lines else lines[-1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and what it has started; of one that has ended, what it left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _shown(command: str) -> str:
    return shlex.join(command.split())


def _line(outcome: Outcome) -> str:
    says = f": {outcome.says}" if outcome.says else ""
    return f"{outcome.name}: {outcome.status}, {outcome.seconds:.0f} s{says}"


def _print_summary(outcomes: list[Outcome]) -> None:
    print("\nSummary")
    for outcome in outcomes:
        print(f"  {_line(outcome)}")


if __name__ == "__main__":
    sys.exit(main())
