"""What mini-llava and mini-blip2 are trained on: right answers, told apart from held-out ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from training.scenes import scene as scenes
from training.scenes.loader import HELD_OUT, batches, example, held_out
from training.scenes.models import MODELS
from training.scenes.questions import KINDS, SHARES, Lesson, ask, plural
from training.scenes.subject import MAX_NEW_TOKENS

SEEDS = range(400)


def answer_of(scene, kind: str, question: str) -> str:
    """Found another way: from the words of the question and the list of objects."""
    words = question.replace("?", "").replace(".", "").replace(",", "").split()
    named = [o for o in scene.objects if o.name in question]
    if kind == "read":
        return scene.sign
    if kind == "count":
        colours = [c for c in scenes.COLOURS if c in words]
        shapes = [s for s in scenes.SHAPES if plural(s) in words]
        fits = [o for o in scene.objects if o.colour in (colours or [o.colour]) and o.shape in (shapes or [o.shape])]
        return str(len(fits))
    if kind == "colour":
        [found] = [o.colour for o in scene.objects if o.shape in words]
        return found
    if kind == "shape":
        [found] = [o.shape for o in scene.objects if o.colour in words]
        return found
    if kind == "where":
        return place(*named)
    first, second = sorted(named, key=lambda o: question.index(o.name))
    if kind == "both":
        return f"{place(first)} and {place(second)}"
    if kind == "explain":
        sideways = "left" in words or "right" in words
        row, column = zip(*(place(thing).split(", ") for thing in (first, second)), strict=True)
        verdict = answer_of(scene, "position", question.removesuffix(" Explain."))
        return f"{', '.join(column if sideways else row)}: {verdict}"
    if question.startswith("Is"):
        true = {"left": first.x < second.x, "right": first.x > second.x, "above": first.y < second.y,
                "below": first.y > second.y}  # fmt: skip
        return "yes" if next(value for word, value in true.items() if word in words) else "no"
    best = {"left": lambda o: -o.x, "right": lambda o: o.x, "higher": lambda o: -o.y, "lower": lambda o: o.y}
    return f"the {max((first, second), key=next(f for word, f in best.items() if word in words)).name}"


def place(thing) -> str:
    return f"row {1 + int(thing.y / scenes.CELL)}, column {1 + int(thing.x / scenes.CELL)}"


def test_every_answer_is_the_one_that_the_scene_gives():
    kinds, said = Counter(), Counter()
    for seed in SEEDS:
        scene = scenes.make(seed)
        for kind, question, answer in ask(scene, 6, seed):
            assert answer == answer_of(scene, kind, question), (seed, question)
            kinds[kind] += 1
            said[answer] += kind == "position"
    assert set(kinds) == {kind for kind, share in SHARES.items() if share} and min(kinds.values()) > 50
    assert 0.7 < said["yes"] / said["no"] < 1.4


def test_lessons_say_the_right_places_too():
    kinds, named = Counter(), 0
    for seed in SEEDS:
        scene = scenes.make(seed)
        for kind, question, answer in ask(scene, 6, seed, Lesson(reasons=5, which=0.9)):
            assert answer == answer_of(scene, kind, question), (seed, question)
            kinds[kind] += 1
            named += kind == "position" and question.startswith("Which")
    assert set(kinds) == set(KINDS) and min(kinds.values()) > 50
    assert named > 0.8 * kinds["position"]


def test_a_number_gives_the_same_picture_always_and_another_one_another():
    pictures = [example(seed, 3) for seed in (5, 5, 6)]
    assert np.array_equal(pictures[0][0], pictures[1][0]) and pictures[0][1] == pictures[1][1]
    assert not np.array_equal(pictures[0][0], pictures[2][0])
    assert pictures[0][0].shape == (scenes.SIZE, scenes.SIZE, 3)


def test_objects_do_not_touch_the_sign_or_one_another():
    for seed in SEEDS:
        scene = scenes.make(seed)
        cells = {(int(o.x // scenes.CELL), int(o.y // scenes.CELL)) for o in scene.objects}
        assert len(cells) == len(scene.objects)
        if scene.sign:
            strip = (0, scenes.SIGN) if scene.sign_on_top else (scenes.SIZE - scenes.SIGN, scenes.SIZE)
            assert all(o.y + o.radius <= strip[0] or o.y - o.radius >= strip[1] for o in scene.objects)


def test_training_never_sees_held_out_scenes():
    stream = batches(4, 2, workers=0, seed=10**12 - 7)
    first = next(stream)
    assert first.pixels.shape == (4, scenes.SIZE, scenes.SIZE, 3) and len(first.questions[0]) == 2
    assert (10**12 - 7) * 10**9 % (HELD_OUT // 2) + 10**9 < HELD_OUT, "a day of training stays below"
    assert not torch.equal(first.pixels, held_out(4).pixels)


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    """Size, that learning learns, and that every answer fits."""
    torch.manual_seed(0)
    subject = MODELS[name]()
    assert sum(p.numel() for p in subject.model.parameters()) * 2 < 13.9e6
    for seed in range(50):
        for _, question, answer in ask(scenes.make(seed), 4, seed, Lesson(reasons=3)):
            assert subject.tokenizer.decode(subject.ids(f"{question} {answer}")) == f"{question} {answer}"
            assert len(subject.ids(" " + answer)) < MAX_NEW_TOKENS
    examples, optimizer = held_out(2, 2), torch.optim.Adam(subject.model.parameters(), 1e-3)
    losses = []
    for _ in range(4):
        loss = subject.loss(**subject.batch(examples))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
