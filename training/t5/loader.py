"""Training batches, made in worker processes and sorted by length."""

from __future__ import annotations

import collections
import multiprocessing
import os
import queue
import random
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from training.t5 import tasks
from training.t5.tokens import PAD

# longest source and target, and the rows of a batch
BUCKETS = ((24, 24, 768), (40, 40, 512), (64, 64, 256), (128, 64, 192))
CHUNK = 2048

Arrays = tuple[np.ndarray, np.ndarray]  # [rows, source], [rows, target] uint16


def bucket_of(source: int, target: int) -> int | None:
    fits = (i for i, (longest, most, _) in enumerate(BUCKETS) if source <= longest and target <= most)
    return next(fits, None)


def pad(rows: list[list[int]], width: int) -> np.ndarray:
    out = np.full((len(rows), width), PAD, np.uint16)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def encode(tokenizer: Tokenizer, examples: list[tasks.Example]) -> dict[int, Arrays]:
    """By bucket; what is longer than all of them is left out."""
    sources, targets = ([e.ids for e in tokenizer.encode_batch([getattr(x, field) for x in examples])]
                        for field in ("source", "target"))  # fmt: skip
    rows = collections.defaultdict(lambda: ([], []))
    for source, target in zip(sources, targets, strict=True):
        bucket = bucket_of(len(source), len(target))
        if bucket is not None:
            rows[bucket][0].append(source)
            rows[bucket][1].append(target)
    return {b: (pad(s, BUCKETS[b][0]), pad(t, BUCKETS[b][1])) for b, (s, t) in rows.items()}


def work(seed: int, tokenizer_file: Path, ready) -> None:
    """Sends whole batches, of all buckets in the shares in which they fill."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer, examples = Tokenizer.from_file(str(tokenizer_file)), tasks.training(random.Random(seed))
    waiting: dict[int, Arrays] = {}
    while True:
        for bucket, arrays in encode(tokenizer, list(islice(examples, CHUNK))).items():
            if bucket in waiting:
                arrays = tuple(np.concatenate(parts) for parts in zip(waiting[bucket], arrays, strict=True))
            size = BUCKETS[bucket][2]
            while len(arrays[0]) >= size:
                ready.put(tuple(a[:size].copy() for a in arrays))
                arrays = tuple(a[size:] for a in arrays)
            waiting[bucket] = arrays


class Loader:
    """Fresh batches while the workers keep up, else earlier ones again."""

    def __init__(self, tokenizer_file: Path, workers: int, device: torch.device, seed: int, pool: int = 4000):
        context = multiprocessing.get_context("spawn")
        self.device, self.fresh = device, 0
        self._ready = context.Queue(8 * workers)
        self._batches: queue.Queue = queue.Queue(32)
        self._pool: collections.deque = collections.deque(maxlen=pool)
        self._workers = [
            context.Process(target=work, args=(seed * 1000 + i, tokenizer_file, self._ready), daemon=True)
            for i in range(workers)
        ]
        for worker in self._workers:
            worker.start()
        threading.Thread(target=self._collect, daemon=True).start()

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(source, target) int64 on the device"""
        try:
            batch = self._batches.get(block=len(self._pool) < 64)
            self.fresh += 1
            self._pool.append(batch)
        except queue.Empty:
            batch = random.choice(self._pool)
        return tuple(t.long() for t in batch)

    def one_of_each(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A batch of every bucket's shape, to compile on."""
        shapes = ((torch.ones(n, s).long(), torch.ones(n, t).long()) for s, t, n in BUCKETS)
        return [(s.to(self.device), t.to(self.device)) for s, t in shapes]

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()

    def _collect(self) -> None:
        """Moves batches to the device in a stream of its own, so that the training never waits for a copy."""
        stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        while True:
            arrays = self._ready.get()
            with torch.cuda.stream(stream):
                batch = tuple(torch.from_numpy(a.astype(np.int16)).to(self.device) for a in arrays)
            if stream is not None:
                stream.synchronize()
            self._batches.put(batch)
