"""Runs a list of measurements on a GPU, the most wanted first, within a time that is given.

    python benchmarks/gpu_session.py --list                                       what there is, and its seconds
    python benchmarks/gpu_session.py --budget 560 --out results                   all, as far as the time goes
    python benchmarks/gpu_session.py --budget 560 --out results nllb-200 opus-mt  these alone
    python benchmarks/gpu_session.py --budget 560 --out results --after t5-small  those that follow

Each is a `vlm bench` command of its own, whose result is written to `results/NAME.json` as soon as it is there, what it
printed to `results/NAME.log`. One that fails stops none of the others; where Hugging Face took part it is run again
without it. A command starts where its seconds are left, and is ended when they are over; shorter ones further down take
what is left. `results/summary.json` says what ran, what failed and what had no time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

VLM = (sys.executable, "-m", "vlm_app.cli.main")
# name, the seconds it may take, what stands behind `vlm bench`
COMMANDS = (
    ("llava-1.5-7b-quantized", 480,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 "
     "--backend torch,torch-int4,torch-int8,torch-fp8 --batch-size 1 --input-output-len 32,128 "
     "--repeats 3 --no-hf"),
    ("llava-1.5-7b-fp8-batch-32", 300,
     "prompt --arch llava-1.5-7b --random-weights --dtype float16 --backend torch,torch-fp8+kv-fp8 "
     "--batch-size 32 --input-output-len 32,128 --repeats 3 --profile --no-hf"),
    ("flan-t5-xl-int8", 200,
     "text --arch flan-t5-xl --random-weights --dtype bfloat16 --backend torch,torch-int8 "
     "--input-output-len 350,128 --no-hf --repeats 5"),
    ("gpt2-medium-batch-1", 90,
     "prompt --arch gpt2-medium --random-weights --dtype float16 --batch-size 1 "
     "--input-output-len 128,128 --hf-new-tokens 64 --repeats 5 --hf-repeats 3"),
    ("bart-large-cnn-lora", 120,
     "text --arch bart-large-cnn --random-weights --dtype bfloat16 --backend torch,torch+lora-8x16 "
     "--batch-size 128 --input-output-len 350,128 --repeats 5 --no-hf"),
    ("t5-small-batch-128", 90,
     "text --arch t5-small --random-weights --dtype bfloat16 --batch-size 128 --input-output-len 64,64 "
     "--hf-new-tokens 64 --repeats 5 --hf-repeats 3"),
    ("nllb-200-600m-text", 120,
     "text --arch nllb-200-600m --random-weights --dtype bfloat16 --batch-size 1;128 "
     "--input-output-len 64,64 --hf-new-tokens 32 --repeats 5 --hf-repeats 3"),
    ("opus-mt-text", 100,
     "text --arch opus-mt-de-en --random-weights --dtype bfloat16 --batch-size 1;128 "
     "--input-output-len 64,64 --hf-new-tokens 32 --repeats 5 --hf-repeats 3"),
    ("trocr-base-throughput", 120,
     "throughput --arch trocr-base --random-weights --dtype bfloat16 --batch-size 256 --pages 1024 "
     "--new-tokens 32 --hf-new-tokens 32 --repeats 3"),
    ("donut-base-throughput", 180,
     "throughput --arch donut-base --random-weights --dtype bfloat16 --batch-size 32 --pages 64 "
     "--new-tokens 300 --hf-batch-size 8 --hf-new-tokens 60 --repeats 3"),
    ("florence-2-large-prompt", 180,
     "prompt --arch florence-2-large --random-weights --dtype bfloat16 --batch-size 1;32 "
     "--input-output-len 12,128 --image-size 1024x768 --hf-new-tokens 32 --repeats 3"),
    ("lightonocr-1b-prompt", 300,
     "prompt --arch lightonocr-1b --random-weights --dtype bfloat16 --batch-size 1;64 "
     "--input-output-len 16,800 --image-size 1190x1540 --hf-batch-size 4 --hf-new-tokens 64 "
     "--repeats 3"),
    ("qwen2.5-vl-3b-640x360", 240,
     "prompt --arch qwen2.5-vl-3b --random-weights --dtype bfloat16 --batch-size 32 "
     "--input-output-len 32,512 --image-size 640x360 --hf-new-tokens 48 --repeats 3"),
    ("qwen2.5-vl-3b-1920x1080", 240,
     "prompt --arch qwen2.5-vl-3b --random-weights --dtype bfloat16 --batch-size 32 "
     "--input-output-len 32,128 --image-size 1920x1080 --hf-batch-size 8 --hf-new-tokens 32 "
     "--repeats 3"),
    ("pix2struct-base-throughput", 150,
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
    ("pegasus-large-text", 120,
     "text --arch pegasus-large --random-weights --dtype bfloat16 --batch-size 1;128 "
     "--input-output-len 350,64 --hf-new-tokens 32 --repeats 3 --hf-repeats 1"),
    ("t5gemma-2b-2b-text", 240,
     "text --arch t5gemma-2b-2b --random-weights --dtype bfloat16 --batch-size 1;32 "
     "--input-output-len 350,128 --hf-new-tokens 24 --repeats 3 --hf-repeats 1"),
)  # fmt: skip
WITHOUT_HF = "--no-hf"


@dataclass(frozen=True)
class Outcome:
    """What became of a measurement."""

    name: str
    status: str  # "ran", "ran without Hugging Face", "failed", "timed out", "no time left"
    seconds: float = 0.0
    says: str = ""  # the last line that a failure printed


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; 1 where anything failed."""
    options = _options(arguments)
    wanted = _wanted(options.names, options.after)
    if options.list:
        for name, seconds, command in wanted:
            print(f"{name} ({seconds} s): vlm bench {_shown(command)}")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    end = time.monotonic() + options.budget
    for name, seconds, command in wanted:
        outcomes.append(_measured(name, seconds, command, out=options.out, end=end))
        print(_line(outcomes[-1]), flush=True)
        (options.out / "summary.json").write_text(json.dumps([asdict(each) for each in outcomes], indent=2) + "\n")
    _print_summary(outcomes)
    return int(any(outcome.status in ("failed", "timed out") for outcome in outcomes))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of measurements, or how they begin (default: all)")
    parser.add_argument("--after", default="", help="only those that follow this one")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds of all together")
    parser.add_argument("--out", type=Path, default=Path("gpu-session"), help="where results go")
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    return parser.parse_args(arguments)


def _wanted(names: list[str], after: str) -> list[tuple[str, int, str]]:
    """Returns the measurements that are asked for, in their order. Exits for a name that there is not."""
    known = [name for name, _, _ in COMMANDS]
    for begin in (*names, after):
        if not any(name.startswith(begin) for name in known):
            sys.exit(f"no measurement is called {begin!r}; there are {', '.join(known)}.")
    first = 1 + max(i for i, name in enumerate(known) if name.startswith(after)) if after else 0
    return [each for each in COMMANDS[first:] if not names or each[0].startswith(tuple(names))]


def _measured(name: str, seconds: int, command: str, *, out: Path, end: float) -> Outcome:
    """Runs a measurement where its seconds are left, and again without Hugging Face where it fails with it."""
    if end - time.monotonic() < seconds:
        return Outcome(name, "no time left")
    outcome = _run(name, seconds, command, out=out)
    left = end - time.monotonic()
    if outcome.status != "failed" or WITHOUT_HF in command or command.startswith("ocr") or left < seconds:
        return outcome
    again = _run(name, seconds, f"{command} {WITHOUT_HF}", out=out)
    if again.status != "ran":
        return again
    return Outcome(name, "ran without Hugging Face", outcome.seconds + again.seconds, outcome.says)


def _run(name: str, seconds: float, command: str, *, out: Path) -> Outcome:
    """Runs one command. Its result has the name that is looked for once it is whole."""
    part, log = out / f"{name}.json.part", out / f"{name}.log"
    print(f"\n$ vlm bench {_shown(command)}", flush=True)
    began = time.monotonic()
    # engines of many gigabytes lie there, which a command that is ended leaves behind
    with log.open("a") as file, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(
            [*VLM, "bench", *command.split(), "--json", str(part)],
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=os.environ | {"TMPDIR": scratch},
        )
        try:
            status = "ran" if process.wait(timeout=seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "timed out"
        finally:
            _end(process)
    if status == "ran":
        part.replace(out / f"{name}.json")
    else:
        part.unlink(missing_ok=True)
    lines = log.read_text(errors="replace").strip().splitlines()
    if status == "ran":
        print("\n".join(lines[-40:]))
    return Outcome(name, status, time.monotonic() - began, "" if status == "ran" or not lines else lines[-1])


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
