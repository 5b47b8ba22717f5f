"""Questions about a scene that have one right answer, and that answer."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from training.scenes.scene import CELL, COLOURS, MOST, SHAPES, Object, Scene

MARGIN = 12  # pixels: what is nearer than that is neither left nor right of the other
KINDS = ("count", "colour", "shape", "position", "read", "where")
Answered = tuple[str, str] | None  # question and answer; None: the scene allows none


def plural(shape: str) -> str:
    return shape + ("es" if shape.endswith("s") else "s")


def count(scene: Scene, draw: random.Random) -> Answered:
    """All, of a colour, of a shape, or of both; mostly of something that is there."""
    what = draw.choice(("all", "colour", "shape", "both"))
    seen = draw.choice(scene.objects)
    there = draw.random() < 0.75
    colour = seen.colour if there else draw.choice(list(COLOURS))
    shape = seen.shape if there else draw.choice(SHAPES)
    of = {"all": "objects", "colour": f"{colour} objects", "shape": plural(shape), "both": f"{colour} {plural(shape)}"}
    fits = {"all": lambda o: True, "colour": lambda o: o.colour == colour, "shape": lambda o: o.shape == shape,
            "both": lambda o: (o.colour, o.shape) == (colour, shape)}[what]  # fmt: skip
    form = draw.choice(("How many {} are there?", "How many {} do you see?", "Count the {}."))
    return form.format(of[what]), str(sum(map(fits, scene.objects)))


def colour(scene: Scene, draw: random.Random) -> Answered:
    """Of a shape that is there once."""
    once = _alone(scene, lambda o: o.shape)
    if not once:
        return None
    thing = draw.choice(once)
    form = draw.choice(("What colour is the {}?", "Which colour does the {} have?", "What is the colour of the {}?"))
    return form.format(thing.shape), thing.colour


def shape(scene: Scene, draw: random.Random) -> Answered:
    """Of a colour that is there once."""
    once = _alone(scene, lambda o: o.colour)
    if not once:
        return None
    thing = draw.choice(once)
    form = draw.choice(("What shape is the {} object?", "Which shape is {}?", "What is the shape of the {} object?"))
    return form.format(thing.colour), thing.shape


def position(scene: Scene, draw: random.Random, told: float = 0.0) -> Answered:
    """Of two objects that their names tell apart from all others; `told`: how often places are given in words first."""
    pairs = _alone(scene, lambda o: o.name)
    sideways = draw.random() < 0.5
    apart = [(a, b) for a in pairs for b in pairs if abs(_along(a, sideways) - _along(b, sideways)) >= MARGIN]
    if not apart:
        return None
    a, b = draw.choice(apart)
    before = _along(a, sideways) < _along(b, sideways)
    given = _told(a, b, draw) if told and draw.random() < told else ""
    first, last = ("to the left of", "to the right of") if sideways else ("above", "below")
    if draw.random() < 0.5:
        asked = draw.random() < 0.5
        question = f"{given}Is the {a.name} {first if asked else last} the {b.name}?"
        return question, "yes" if before == asked else "no"
    near, far = ("further left", "further right") if sideways else ("higher", "lower")
    asked = draw.random() < 0.5
    question = f"{given}Which is {near if asked else far}, the {a.name} or the {b.name}?"
    return question, f"the {(a if before == asked else b).name}"


def where(scene: Scene, draw: random.Random) -> Answered:
    """Of an object with a name of its own, its place on a grid: what comparing positions is learnt from."""
    once = _alone(scene, lambda o: o.name)
    if not once:
        return None
    thing = draw.choice(once)
    return f"Where is the {thing.name}?", _place(thing)


def read(scene: Scene, draw: random.Random) -> Answered:
    if scene.sign is None:
        return None
    return draw.choice(("What does the sign say?", "Read the sign.", "What is written on the sign?")), scene.sign


ASK: dict[str, Callable[[Scene, random.Random], Answered]] = {
    "count": count, "colour": colour, "shape": shape, "position": position, "read": read, "where": where,
}  # fmt: skip


# positions are learnt slowly, after what the objects are
SHARES = {"count": 2, "colour": 1, "shape": 1, "position": 5, "read": 1, "where": 4}


@dataclass(frozen=True)
class Lesson:
    """How hard scenes and questions are."""

    most_objects: int = MOST
    positions: int = SHARES["position"]
    told: float = 0.0  # share of comparisons that say first where one or both of the objects are


WHOLE = Lesson()


def ask(scene: Scene, number: int, seed: int, lesson: Lesson = WHOLE) -> list[tuple[str, str, str]]:
    """`number` of (kind, question, answer), in any order. A sign is always asked for: reading is learnt the slowest."""
    shares = SHARES | {"position": lesson.positions}
    draw, kinds_of = random.Random(seed), ASK | {"position": functools.partial(position, told=lesson.told)}
    kinds = ["read"] if scene.sign else []
    found: list[tuple[str, str, str]] = []
    while len(found) < number:
        kind = kinds.pop() if kinds else draw.choices(KINDS, [shares[k] for k in KINDS])[0]
        answered = kinds_of[kind](scene, draw)
        if answered is not None:
            found.append((kind, *answered))
    draw.shuffle(found)
    return found


def _alone(scene: Scene, of: Callable[[Object], str]) -> list[Object]:
    """The objects that nothing else is like."""
    number = Counter(map(of, scene.objects))
    return [thing for thing in scene.objects if number[of(thing)] == 1]


def _place(thing: Object) -> str:
    return f"row {int(thing.y // CELL) + 1}, column {int(thing.x // CELL) + 1}"


def _told(a: Object, b: Object, draw: random.Random) -> str:
    known = draw.choice(((a, b), (a, b), (a,), (b,)))
    return "".join(f"The {thing.name} is in {_place(thing)}. " for thing in known)


def _along(thing: Object, sideways: bool) -> float:
    return thing.x if sideways else thing.y
