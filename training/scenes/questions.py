"""Questions about a scene that have one right answer, and that answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from training.scenes.scene import CELL, COLOURS, MOST, SHAPES, Object, Scene

MARGIN = 12  # pixels: what is nearer than that is neither left nor right of the other
KINDS = ("count", "colour", "shape", "position", "read", "where", "both", "explain")
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
    """Asks for the colour of a shape that is there once."""
    once = _alone(scene, lambda o: o.shape)
    if not once:
        return None
    thing = draw.choice(once)
    form = draw.choice(("What colour is the {}?", "Which colour does the {} have?", "What is the colour of the {}?"))
    return form.format(thing.shape), thing.colour


def shape(scene: Scene, draw: random.Random) -> Answered:
    """Asks for the shape of a colour that is there once."""
    once = _alone(scene, lambda o: o.colour)
    if not once:
        return None
    thing = draw.choice(once)
    form = draw.choice(("What shape is the {} object?", "Which shape is {}?", "What is the shape of the {} object?"))
    return form.format(thing.colour), thing.shape


def position(scene: Scene, draw: random.Random, which: float = 0.5, explained: bool = False) -> Answered:
    """Asks about two objects that their names tell apart from all others; `which`: the share that asks for a name."""
    pairs = _alone(scene, lambda o: o.name)
    sideways = draw.random() < 0.5
    apart = [(a, b) for a in pairs for b in pairs if abs(_along(a, sideways) - _along(b, sideways)) >= MARGIN]
    if not apart:
        return None
    a, b = draw.choice(apart)
    before = _along(a, sideways) < _along(b, sideways)
    named, asked = draw.random() >= 1 - which, draw.random() < 0.5
    if named:
        near, far = ("further left", "further right") if sideways else ("higher", "lower")
        question = f"Which is {near if asked else far}, the {a.name} or the {b.name}?"
        answer = f"the {(a if before == asked else b).name}"
    else:
        first, last = ("to the left of", "to the right of") if sideways else ("above", "below")
        question = f"Is the {a.name} {first if asked else last} the {b.name}?"
        answer = "yes" if before == asked else "no"
    if not explained:
        return question, answer
    return f"{question} Explain.", f"{_line(a, sideways)}, {_line(b, sideways)}: {answer}"


def where(scene: Scene, draw: random.Random) -> Answered:
    """Asks for the place on a grid of an object with a name of its own: what comparing positions is learnt from."""
    once = _alone(scene, lambda o: o.name)
    if not once:
        return None
    thing = draw.choice(once)
    return f"Where is the {thing.name}?", _place(thing)


def both(scene: Scene, draw: random.Random) -> Answered:
    """The places of two: which object was named first, and which then, is learnt here."""
    once = _alone(scene, lambda o: o.name)
    if len(once) < 2:
        return None
    a, b = draw.sample(once, 2)
    return f"Where are the {a.name} and the {b.name}?", f"{_place(a)} and {_place(b)}"


def explain(scene: Scene, draw: random.Random, which: float = 0.5) -> Answered:
    """A comparison whose columns or rows are said first."""
    return position(scene, draw, which, explained=True)


def read(scene: Scene, draw: random.Random) -> Answered:
    if scene.sign is None:
        return None
    return draw.choice(("What does the sign say?", "Read the sign.", "What is written on the sign?")), scene.sign


ASK: dict[str, Callable[..., Answered]] = {
    "count": count, "colour": colour, "shape": shape, "position": position, "read": read, "where": where,
    "both": both, "explain": explain,
}  # fmt: skip


# positions are learnt slowly, after what the objects are
SHARES = {"count": 2, "colour": 1, "shape": 1, "position": 5, "read": 1, "where": 4, "both": 0, "explain": 0}


@dataclass(frozen=True)
class Lesson:
    """How hard scenes and questions are."""

    most_objects: int = MOST
    positions: int = SHARES["position"]
    reasons: int = 0  # of each of the kinds that comparing is learnt from: both, explain
    which: float = 0.5  # share of comparisons that ask for a name


WHOLE = Lesson()


def ask(scene: Scene, number: int, seed: int, lesson: Lesson = WHOLE) -> list[tuple[str, str, str]]:
    """`number` of (kind, question, answer), in any order. A sign is always asked for: reading is learnt the slowest."""
    shares = SHARES | {"position": lesson.positions, "both": lesson.reasons, "explain": lesson.reasons}
    draw = random.Random(seed)
    kinds = ["read"] if scene.sign else []
    found: list[tuple[str, str, str]] = []
    while len(found) < number:
        kind = kinds.pop() if kinds else draw.choices(KINDS, [shares[k] for k in KINDS])[0]
        more = {"which": lesson.which} if kind in ("position", "explain") else {}
        answered = ASK[kind](scene, draw, **more)
        if answered is not None:
            found.append((kind, *answered))
    draw.shuffle(found)
    return found


def _alone(scene: Scene, of: Callable[[Object], str]) -> list[Object]:
    """The objects that nothing else is like."""
    number = Counter(map(of, scene.objects))
    return [thing for thing in scene.objects if number[of(thing)] == 1]


def _place(thing: Object) -> str:
    return f"{_line(thing, sideways=False)}, {_line(thing, sideways=True)}"


def _line(thing: Object, sideways: bool) -> str:
    """Its row, or sideways its column."""
    return f"{'column' if sideways else 'row'} {int(_along(thing, sideways) // CELL) + 1}"


def _along(thing: Object, sideways: bool) -> float:
    return thing.x if sideways else thing.y
