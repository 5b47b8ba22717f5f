"""Pages from worker processes through shared memory, batched on the device."""

from __future__ import annotations

import collections
import mmap
import multiprocessing
import os
import queue
import random
import threading
from pathlib import Path

import numpy as np
import torch

from training.nougat.typesetting import fonts
from training.nougat.typesetting.pages import COLUMNS, DENSE, HEIGHT, MAX_TOKENS, ROWS, WIDTH, Renderer, encode, stage

CHUNK = 32  # pages a slot of the ring
FIELDS = {
    "image": ((HEIGHT, WIDTH), np.uint8),
    "tokens": ((MAX_TOKENS,), np.int16),
    "cells": ((MAX_TOKENS,), np.int16),
    "dense": ((ROWS * COLUMNS, DENSE), np.uint8),
}


def _shared(shape: tuple[int, ...], dtype) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


def _render(seed: int, folder: Path, ring, free, ready, progress) -> None:
    """A worker: fills slots until it is ended."""
    os.nice(10)  # the training process goes first
    rng, renderer = random.Random(seed), Renderer(fonts.installed(folder))
    while True:
        slot, now = free.get(), progress.value
        for i in range(CHUNK):
            for name, value in encode(renderer.curriculum(rng, now)).items():
                ring[name][slot, i] = value
        ready.put((slot, now))


class Loader:
    """Fresh batches while the workers keep up, else earlier ones again, which the augmentation makes different.

    Make it before CUDA is touched: the workers are forks.
    """

    def __init__(self, folder: Path, batch_size: int, workers: int, device: torch.device, seed: int, pool: int = 300):
        context = multiprocessing.get_context("fork")
        slots = max(24, 3 * workers + 2 * batch_size // CHUNK)
        self.progress = context.Value("d", 0.0)
        self.batch_size, self.device = batch_size, device
        self._ring = {name: _shared((slots, CHUNK, *shape), dtype) for name, (shape, dtype) in FIELDS.items()}
        self._free, self._ready = context.SimpleQueue(), context.SimpleQueue()
        for slot in range(slots):
            self._free.put(slot)
        for i in range(workers):
            arguments = (seed * 1000 + i, folder, self._ring, self._free, self._ready, self.progress)
            context.Process(target=_render, args=arguments, daemon=True).start()
        self._batches: queue.Queue = queue.Queue(3)
        self._pool: collections.deque = collections.deque(maxlen=pool)
        self._stage, self.fresh = 0, 0

    def start(self) -> None:
        threading.Thread(target=self._collect, daemon=True).start()

    def next(self) -> dict[str, torch.Tensor]:
        now = stage(self.progress.value)
        if now != self._stage:
            self._pool.clear()
            self._stage = now
        while True:
            try:
                made_for, batch = self._batches.get(block=len(self._pool) < 12)
            except queue.Empty:
                return random.choice(self._pool)
            if made_for == now:
                batch = {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}
                self._pool.append(batch)
                self.fresh += 1
                return batch

    def _collect(self) -> None:
        while True:
            batch, filled = self._empty(), 0
            while filled < self.batch_size:
                slot, made_at = self._ready.get()
                if stage(made_at) == stage(self.progress.value):
                    for name, target in batch.items():
                        page = torch.from_numpy(self._ring[name][slot])[: self.batch_size - filled]
                        target[filled : filled + CHUNK].copy_(page)
                    filled += CHUNK
                self._free.put(slot)
            self._batches.put((stage(made_at), batch))

    def _empty(self) -> dict[str, torch.Tensor]:
        pinned = self.device.type == "cuda"
        return {
            name: torch.empty((self.batch_size, *shape), dtype=getattr(torch, np.dtype(dtype).name), pin_memory=pinned)
            for name, (shape, dtype) in FIELDS.items()
        }
