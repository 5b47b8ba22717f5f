"""Runs a list of measurements on a GPU, the most wanted first, within a time that is given.

    python benchmarks/gpu_session.py --list                                       what there is, and its seconds
    python benchmarks/gpu_session.py --budget 560 --out results                   all, as far as the time goes
    python benchmarks/gpu_session.py --budget 560 --out results nllb-200 opus-mt  these alone
    python benchmarks/gpu_session.py --budget 560 --out results --after t5-small  those that follow
    python benchmarks/gpu_session.py --budget 560 --out results --gpus 2          on two GPUs

With several GPUs, those that need more than one come first, by themselves; then each GPU takes the next of the others.
Each is a `vlm bench` command of its own, whose result is written to `results/NAME.json` as soon as it is there, what it
printed to `results/NAME.log`. One that fails stops none of the others; where Hugging Face took part it is run again
without it. A command starts where its seconds are left, and is ended when they are over; shorter ones further down take
what is left. `results/summary.json` says what ran, what failed and what had no time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

VLM = (sys.executable, "-m", "vlm_app.cli.main")
# name, the seconds it may take, what stands behind `vlm bench`
COMMANDS = (
    ("llava-1.5-7b-quantized", 480,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 "
     "--backend torch,torch-int4,torch-int8,torch-fp8 --batch-size 1 --input-output-len 32,128 "
     "--repeats 3 --profile --no-hf"),
    ("llava-1.5-7b-fp8-batch-32", 300,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 --backend torch,torch-fp8+kv-fp8 "
     "--batch-size 32 --input-output-len 32,128 --repeats 3 --profile --no-hf"),
    ("flan-t5-xl-int8", 100,
     "text --arch flan-t5-xl --random-weights --dtype bfloat16 --backend torch,torch-int8 "
     "--input-output-len 350,128 --no-hf --repeats 5 --profile"),
    ("gpt2-medium-batch-1", 80,
     "prompt --arch gpt2-medium --random-weights --dtype float16 --batch-size 1 "
     "--input-output-len 128,128 --hf-new-tokens 64 --repeats 5 --hf-repeats 3 --profile"),
    ("bart-large-cnn-lora", 75,
     "text --arch bart-large-cnn --random-weights --dtype bfloat16 --backend torch,torch+lora-8x16 "
     "--batch-size 128 --input-output-len 350,128 --repeats 5 --profile --no-hf"),
    ("t5-small-batch-128", 70,
     "text --arch t5-small --random-weights --dtype bfloat16 --batch-size 128 --input-output-len 64,64 "
     "--hf-new-tokens 64 --repeats 5 --hf-repeats 3 --profile"),
    ("nougat-base-latency", 90,
     "latency --arch nougat-base --random-weights --dtype bfloat16 --new-tokens 1000 --hf-new-tokens 100 "
     "--repeats 3 --profile"),
    ("llava-1.5-7b-lora", 240,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 --backend torch,torch+lora-1x16 --batch-size 1 "
     "--input-output-len 32,128 --repeats 5 --profile --no-hf"),
    ("llava-1.5-13b-tp2", 200,
     "prompt --arch llava-1.5-13b --random-weights --dtype float16 --tp-size 2 --batch-size 1;32 "
     "--input-output-len 32,128 --repeats 3 --no-hf"),
    ("llava-1.5-13b", 200,
     "prompt --arch llava-1.5-13b --random-weights --dtype float16 --batch-size 1;32 "
     "--input-output-len 32,128 --repeats 3 --no-hf"),
    ("flan-t5-xxl-tp2", 200,
     "text --arch flan-t5-xxl --random-weights --dtype bfloat16 --tp-size 2 --batch-size 1;32 "
     "--input-output-len 350,128 --repeats 3 --no-hf"),
    ("flan-t5-xxl", 200,
     "text --arch flan-t5-xxl --random-weights --dtype bfloat16 --batch-size 1;32 "
     "--input-output-len 350,128 --repeats 3 --no-hf"),
    ("ocr-nougat-base-2-devices", 150,
     "ocr --arch nougat-base --random-weights --kinds png,jpeg --documents 128 --pages-per-document 8 "
     "--batch-size 128 --tokens 1000 --repeats 1 --devices cuda:0,cuda:1"),
    ("ocr-nougat-base-1-device", 120,
     "ocr --arch nougat-base --random-weights --kinds png,jpeg --documents 64 --pages-per-document 8 "
     "--batch-size 128 --tokens 1000 --repeats 1"),
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
     "--repeats 3"),
    ("qwen2.5-vl-3b-640x360", 140,
     "prompt --arch qwen2.5-vl-3b --random-weights --dtype bfloat16 --batch-size 32 "
     "--input-output-len 32,512 --image-size 640x360 --hf-new-tokens 48 --repeats 3"),
    ("qwen2.5-vl-3b-1920x1080", 180,
     "prompt --arch qwen2.5-vl-3b --random-weights --dtype bfloat16 --batch-size 32 "
     "--input-output-len 32,128 --image-size 1920x1080 --hf-batch-size 8 --hf-new-tokens 32 "
     "--repeats 3"),
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
    def gpus(self) -> int:
        """Returns how many GPUs it needs: its ranks, or its devices."""
        words = self.command.split()
        options = dict(itertools.pairwise(words))
        ranks = int(options.get("--tp-size", 1)) * int(options.get("--pp-size", 1))
        return max(ranks, len(options.get("--devices", "").split(",")))

    def words(self, result: Path) -> list[str]:
        """Returns what stands behind `vlm`; what stands behind `--` is for another command."""
        kind, *options = self.command.split()
        return ["bench", kind, "--json", str(result), *options]


@dataclass
class Session:
    """Runs measurements on `gpus` GPUs until `end`, a time of the monotonic clock; results go to `out`."""

    out: Path
    end: float
    gpus: int
    outcomes: list[Outcome] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def run(self, wanted: list[Measurement]) -> None:
        """Runs each: those of several GPUs in their order, then on each GPU the next one of the others."""
        numbers, free = _numbers(self.gpus), SimpleQueue[str | None]()
        for each in wanted:
            if each.gpus > 1:
                self._note(self._measured(each, ",".join(numbers)))
        for number in numbers if self.gpus > 1 else [None]:
            free.put(number)

        def measure(each: Measurement) -> None:
            gpu = free.get()
            try:
                self._note(self._measured(each, gpu))
            finally:
                free.put(gpu)

        with ThreadPoolExecutor(self.gpus) as pool:
            list(pool.map(measure, [each for each in wanted if each.gpus == 1]))

    def _note(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            print(_line(outcome), flush=True)
            text = json.dumps([asdict(each) for each in self.outcomes], indent=2)
            (self.out / "summary.json").write_text(text + "\n")

    def _measured(self, each: Measurement, visible: str | None) -> Outcome:
        """Runs a measurement where its GPUs are there and its seconds left, and again without Hugging Face where it
        fails with it."""
        if each.gpus > self.gpus:
            return Outcome(each.name, "too few GPUs")
        if self.end - time.monotonic() < each.seconds:
            return Outcome(each.name, "no time left")
        outcome = _run(each, out=self.out, visible=visible)
        left, alone = self.end - time.monotonic(), each.command.startswith(ALONE) or WITHOUT_HF in each.command
        if outcome.status != "failed" or alone or left < each.seconds:
            return outcome
        again = _run(replace(each, command=f"{each.command} {WITHOUT_HF}"), out=self.out, visible=visible)
        if again.status != "ran":
            return again
        return Outcome(each.name, "ran without Hugging Face", outcome.seconds + again.seconds, outcome.says)


def _numbers(gpus: int) -> list[str]:
    """Returns the GPUs' numbers: the first ones, of those that CUDA_VISIBLE_DEVICES names where it does."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:gpus] if named else [str(number) for number in range(gpus)]


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; 1 where anything failed."""
    options = _options(arguments)
    wanted = _wanted(options.names, options.after)
    if options.list:
        for each in wanted:
            print(f"{each.name} ({each.seconds} s): vlm bench {_shown(each.command)}")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(options.out, time.monotonic() + options.budget, options.gpus)
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


def _run(each: Measurement, *, out: Path, visible: str | None) -> Outcome:
    """Runs one command, which sees the GPUs of these numbers (None: all). Its result has the name that is looked for
    once it is whole."""
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
            env=os.environ | {"TMPDIR": scratch} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}),
        )
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
