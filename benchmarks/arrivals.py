"""Times what a steady trickle of single arrivals costs the sequences that are being decoded: a tool for who changes
admission.

    python benchmarks/arrivals.py MODEL                    MODEL as vlm.load takes it
    python benchmarks/arrivals.py t5-small --random FOLDER --running 127 --tokens 64 --new-tokens 960
    python benchmarks/arrivals.py llava-1.5-7b --random FOLDER --running 31 --new-tokens 320 --every 1000 250
    python benchmarks/arrivals.py mini-t5 --cpu --running 3 --new-tokens 64   does it run?

So many sequences are decoded to their end, alone and while others arrive one by one, with a slot free for each of them;
what a sequence is, `first_token.py` says. It prints the milliseconds of a token from the first of all on, medians of
rounds in which all intervals take turns, and how much longer that is than alone. An arrival's own tokens, prompt and
image are part of what it costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from first_token import prompt_of, random_engine

import vlm
from vlm.config import RuntimeConfig
from vlm.requests.request import Request

MOST_ARRIVALS = 256  # of a round


class Trickle:
    """Decodes sequences while others arrive."""

    def __init__(self, pipeline: vlm.Pipeline, *, running: int, tokens: int, new_tokens: int, of_arrivals: int):
        self._pipeline, self._running, self._new_tokens = pipeline, running, new_tokens
        self._tokens, self._of_arrivals = tokens, of_arrivals
        self._generator = torch.Generator().manual_seed(0)

    def seconds(self, every: float | None) -> tuple[float, int]:
        """Returns the seconds of a token while one more request comes each `every` seconds, and how many came."""
        loop, later = self._pipeline.loop, list(self._requests(MOST_ARRIVALS, self._of_arrivals))
        counts = dict.fromkeys(loop.add(self._requests(self._running, self._new_tokens)), 0)
        while not all(counts.values()):
            self._step(counts)
        began, first, wanted, came = time.perf_counter(), sum(counts.values()), self._running * self._new_tokens, 0
        while sum(counts.values()) < wanted:
            if every is not None and later and time.perf_counter() >= began + (came + 1) * every:
                loop.add([later.pop()])
                came += 1
            self._step(counts)
        ended = time.perf_counter()
        while loop.has_work:
            loop.step()
        return (ended - began) * self._running / (wanted - first), came

    def _step(self, counts: dict[int, int]) -> None:
        """Counts the tokens of sequences that a step brings; those of arrivals are not counted."""
        for update in self._pipeline.loop.step():
            if update.request_id in counts:
                counts[update.request_id] += len(update.token_ids)

    def _requests(self, count: int, new_tokens: int) -> Iterator[Request]:
        for _ in range(count):
            prompt = prompt_of(self._pipeline, self._tokens, self._generator)
            yield self._pipeline.request(prompt, max_new_tokens=new_tokens, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--running", type=int, default=31, help="sequences that are decoded (default 31)")
    parser.add_argument("--tokens", type=int, default=32, help="of a prompt (default 32)")
    parser.add_argument("--new-tokens", type=int, default=512, help="of those that are decoded (default 512)")
    parser.add_argument("--of-arrivals", type=int, default=16, help="new tokens of one that arrives (default 16)")
    parser.add_argument("--every", type=float, nargs="+", default=[1000, 100, 20], help="milliseconds")
    parser.add_argument("--random", type=Path, metavar="FOLDER")
    parser.add_argument("--dtype", default="float16", help="of random weights (default float16)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    model = args.model
    if args.random is not None:
        model = random_engine(args.model, args.random, args.running + 1, args.dtype)
    pipeline = vlm.load(model, runtime=RuntimeConfig("cpu" if args.cpu else "cuda"))
    sizes = {"running": args.running, "tokens": args.tokens, "new_tokens": args.new_tokens}
    trickle = Trickle(pipeline, **sizes, of_arrivals=args.of_arrivals)
    intervals = [None, *(each / 1e3 for each in args.every)]
    found: dict[float | None, list[tuple[float, int]]] = {every: [] for every in intervals}
    for run in range(args.runs + 1):
        for every in intervals:
            measured = trickle.seconds(every)
            if run:  # the first one meets graphs and kernels that are made in it
                found[every].append(measured)
    alone = statistics.median(seconds for seconds, _ in found[None])
    print(f"{'one more each':>16}{'arrivals':>10}{'ms a token':>12}{'longer':>9}")
    for every, rounds in found.items():
        seconds = statistics.median(seconds for seconds, _ in rounds)
        name = "alone" if every is None else f"{1e3 * every:g} ms"
        count = statistics.median(count for _, count in rounds)
        print(f"{name:>16}{count:10g}{1e3 * seconds:12.4f}{100 * (seconds / alone - 1):8.1f}%")


if __name__ == "__main__":
    main()
