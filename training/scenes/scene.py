"""Scenes: coloured shapes on a plain ground, and at times a sign with a word, drawn with Pillow."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

SIZE = 96  # pixels a side, as the models see it
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross")
COLOURS = {
    "red": (214, 39, 40), "green": (44, 150, 44), "blue": (40, 90, 220), "yellow": (240, 215, 40),
    "purple": (140, 60, 180), "orange": (250, 140, 20), "black": (25, 25, 25), "pink": (250, 150, 200),
}  # fmt: skip
CELL = 24  # pixels a side of the place of one object
SIGN = 24  # height of the strip that a sign stands in
MOST = 6
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ23456789"
WORDS = """STOP EXIT OPEN SHOP TAXI BUS CAFE BAR HOTEL PARK ZOO BANK POST FIRE HELP SALE FREE HOT COLD WET DRY NEW OLD
BIG RED BLUE GREEN CAT DOG FISH BIRD TREE ROAD LEFT RIGHT UP DOWN IN OUT ON OFF YES NO TEA MILK BREAD RICE CAKE PLAY
WORK HOME FARM MAIN WEST EAST NORTH SOUTH TRAIN PORT AIR GATE DOOR KEY MAP BOX CAR BIKE""".split()


@dataclass(frozen=True)
class Object:
    shape: str
    colour: str
    x: float  # centre, pixels of a SIZE × SIZE picture
    y: float
    radius: float

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    objects: tuple[Object, ...]
    sign: str | None
    sign_on_top: bool
    seed: int  # of all that is only to be looked at: ground, shades, the place of the word


def make(seed: int, most: int = MOST) -> Scene:
    """The scene of a number, with at most so many objects: the same one always."""
    draw = random.Random(seed)
    sign = _word(draw) if draw.random() < 0.55 else None
    on_top = draw.random() < 0.5
    rows = (SIZE - (SIGN if sign else 0)) // CELL
    top = SIGN if sign and on_top else 0
    cells = [(row, column) for row in range(rows) for column in range(SIZE // CELL)]
    places = draw.sample(cells, draw.randint(1, most))
    # few colours and shapes in a scene make equal ones common
    shapes, colours = (draw.sample(list(x), draw.randint(1, len(x))) for x in (SHAPES, COLOURS))
    objects = []
    for row, column in places:
        radius = draw.uniform(7, 10.5)
        free = CELL / 2 - radius
        x, y = ((i + 0.5) * CELL + draw.uniform(-free, free) for i in (column, row))
        objects.append(Object(draw.choice(shapes), draw.choice(colours), x, y + top, radius))
    return Scene(tuple(objects), sign, on_top, seed)


def _word(draw: random.Random) -> str:
    if draw.random() < 0.35:
        return draw.choice(WORDS)
    return "".join(draw.choice(LETTERS) for _ in range(draw.randint(2, 5)))


def picture(scene: Scene, size: int = SIZE, scale: int = 2) -> Image.Image:
    """Drawn at `scale` times `size` and made smaller, so that edges are soft."""
    look, side = random.Random(scene.seed + 1), size * scale
    unit = side / SIZE
    shade = look.randint(215, 255)
    ground = tuple(max(0, min(255, shade + look.randint(-8, 8))) for _ in range(3))
    image = Image.new("RGB", (side, side), ground)
    canvas = ImageDraw.Draw(image)
    for thing in scene.objects:
        _draw_object(canvas, thing, unit, look)
    if scene.sign:
        _draw_sign(canvas, scene, unit, look)
    return image.resize((size, size), Image.Resampling.BICUBIC) if scale > 1 else image


def _draw_object(canvas: ImageDraw.ImageDraw, thing: Object, unit: float, look: random.Random) -> None:
    colour = tuple(max(0, min(255, c + look.randint(-14, 14))) for c in COLOURS[thing.colour])
    x, y, r = thing.x * unit, thing.y * unit, thing.radius * unit
    if thing.shape == "circle":
        canvas.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        return
    canvas.polygon([(x + r * a, y + r * b) for a, b in OUTLINES[thing.shape]], fill=colour)


def _star(points: int = 5) -> list[tuple[float, float]]:
    corners = []
    for i in range(2 * points):
        reach, angle = (1.0 if i % 2 == 0 else 0.42), math.pi * (i / points - 0.5)
        corners.append((reach * math.cos(angle), reach * math.sin(angle)))
    return corners


ARM = 0.34
OUTLINES = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0, -1), (0.95, 0.8), (-0.95, 0.8)],
    "diamond": [(0, -1), (0.72, 0), (0, 1), (-0.72, 0)],
    "star": _star(),
    "cross": [(-ARM, -1), (ARM, -1), (ARM, -ARM), (1, -ARM), (1, ARM), (ARM, ARM), (ARM, 1), (-ARM, 1), (-ARM, ARM),
              (-1, ARM), (-1, -ARM), (-ARM, -ARM)],
}  # fmt: skip


@functools.lru_cache(maxsize=64)
def _font(pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(pixels)


def _draw_sign(canvas: ImageDraw.ImageDraw, scene: Scene, unit: float, look: random.Random) -> None:
    font = _font(round(look.uniform(16, 19) * unit))
    left, top, right, bottom = canvas.textbbox((0, 0), scene.sign, font=font)
    width, height = right - left, bottom - top
    margin = 3 * unit
    strip = 0 if scene.sign_on_top else (SIZE - SIGN) * unit
    x = min(look.uniform(1, 4) * margin, SIZE * unit - width - margin)
    y = strip + (SIGN * unit - height) / 2
    box = (x - 2 * unit, y - 2 * unit, x + width + 2 * unit, y + height + 2 * unit)
    dark, light = look.randint(0, 70), look.randint(235, 255)
    canvas.rectangle(box, fill=(light, light, light), outline=(dark, dark, dark), width=max(1, round(unit)))
    canvas.text((x - left, y - top), scene.sign, fill=(dark, dark, dark), font=font)
