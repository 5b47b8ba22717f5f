"""Batches of scenes, made by many processes so that a GPU is not kept waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from training.scenes import scene as scenes
from training.scenes.questions import WHOLE, Lesson, ask

HELD_OUT = 10**12  # seeds from here on are never trained on
SHARPEST = 4  # a scene is drawn at up to so many times its size


@dataclass(frozen=True)
class Examples:
    pixels: Tensor  # [n, SIZE, SIZE, 3] uint8
    questions: list[list[tuple[str, str, str]]]  # of each scene: kind, question, answer


def example(seed: int, number: int, lesson: Lesson = WHOLE) -> tuple[np.ndarray, list[tuple[str, str, str]]]:
    """Picture [SIZE, SIZE, 3] uint8 and its questions."""
    scene = scenes.make(seed, lesson.most_objects)
    scale = SHARPEST if seed % 8 == 0 else 2
    return np.asarray(scenes.picture(scene, scale=scale)), ask(scene, number, seed, lesson)


class Stream(IterableDataset):
    """Endless batches; each process has seeds of its own."""

    def __init__(self, batch_size: int, questions: int, seed: int, lesson: Lesson = WHOLE):
        self.batch_size, self.questions, self.seed, self.lesson = batch_size, questions, seed, lesson

    def __iter__(self) -> Iterator[tuple[Tensor, list]]:
        worker = get_worker_info()
        number, of = (worker.id, worker.num_workers) if worker else (0, 1)
        torch.set_num_threads(1)
        seed = (self.seed * 10**9) % (HELD_OUT // 2) + number
        while True:
            made = [example(seed + i * of, self.questions, self.lesson) for i in range(self.batch_size)]
            seed += self.batch_size * of
            yield torch.from_numpy(np.stack([pixels for pixels, _ in made])), [asked for _, asked in made]


def batches(batch_size: int, questions: int, workers: int, seed: int, lesson: Lesson = WHOLE) -> Iterator[Examples]:
    stream = Stream(batch_size, questions, seed, lesson)
    more = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    loader = DataLoader(stream, batch_size=None, num_workers=min(workers, os.cpu_count() or 1), **more)
    for pixels, asked in loader:
        yield Examples(pixels, asked)


def held_out(number: int, questions: int = 4, lesson: Lesson = WHOLE) -> Examples:
    made = [example(HELD_OUT + i, questions, lesson) for i in range(number)]
    return Examples(torch.from_numpy(np.stack([pixels for pixels, _ in made])), [asked for _, asked in made])
