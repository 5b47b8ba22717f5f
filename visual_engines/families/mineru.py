"""MinerU2.5: a page's layout, each part by itself, and the parts as markdown (Niu et al., arXiv:2509.22186).

Prompts, settings and the form of layouts are those of the publishers' client:
https://github.com/opendatalab/mineru-vl-utils.
"""

from __future__ import annotations

import re

from visual_engines.answers.mineru_markdown import to_markdown
from vlm.registry.page_steps import Ask, Block, PageSteps

MOST_LINES = 1024  # of a layout that are looked at
BEGIN = "<|box_start|>"
LINE = re.compile(
    r"\s*(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*<\|box_end\|>"
    r"<\|ref_start\|>([a-z_]{1,32})<\|ref_end\|>(?:<\|rotate_(up|right|down|left)\|>)?",
    re.IGNORECASE,
)
ANGLES = {"right": 90, "down": 180, "left": 270}
GOES_ON = "txt_contd_tgt"
# a container says where its parts lie, which are named, too; a formula within a text is read with it
NOT_READ = ("image", "chart", "unknown", "list", "equation_block", "image_block")
LEFT_OUT = ("header", "footer", "page_number", "aside_text")  # as MinerU's markdown has it
TEXTS = ("text", "title", "doc_title", "paragraph_title", "table", "equation", "formula_number", "code", "algorithm",
         "ref_text", "index", "phonetic", "list_item", "caption", "table_caption", "image_caption", "code_caption",
         "footnote", "table_footnote", "image_footnote", "page_footnote")  # fmt: skip
KINDS = frozenset((*TEXTS, *NOT_READ, *LEFT_OUT))
SAME = 0.9  # of two boxes' union that both cover: they are one part
WITHIN = 0.9  # of a box that another one covers: it is part of that
# what is read with a larger part, by what is
PARTS = {
    "table": ("text", "equation"),
    "image": ("image_caption",),
    "chart": ("image_caption",),
    "image_block": ("image_caption",),
}

RAW = {"temperature": 0.0, "no_repeat_ngram_size": 100, "skip_special_tokens": False}
READ = Ask("\nText Recognition:", RAW | {"presence_penalty": 1.0, "frequency_penalty": 0.05})
ASKS = {
    "table": Ask("\nTable Recognition:", RAW | {"presence_penalty": 1.0, "frequency_penalty": 0.005}),
    "equation": Ask("\nFormula Recognition:", READ.settings),
}


def blocks(layout: str) -> list[Block]:
    """Returns the parts that a layout names, in reading order; what is no part of it, or names one again, is left
    out."""
    lines = layout.split(BEGIN, MOST_LINES + 1)[1 : MOST_LINES + 1]
    named = dict.fromkeys(block for line in lines if (block := _block(line)) is not None)
    return _without_parts(_without_doubles(list(named)))


def _block(line: str) -> Block | None:
    """Returns the part that stands behind a BEGIN: `x1 y1 x2 y2`, in thousandths of the page, its kind and turn."""
    match = LINE.match(line)
    if match is None or (kind := match[5].lower()) not in KINDS:
        return None
    x1, y1, x2, y2 = (int(match[i]) for i in range(1, 5))
    if max(x1, y1, x2, y2) > 1000 or x1 == x2 or y1 == y2:
        return None
    box = (min(x1, x2) / 1000, min(y1, y2) / 1000, max(x1, x2) / 1000, max(y1, y2) / 1000)
    goes_on = kind == "text" and GOES_ON in line[match.end() :]
    return Block(kind, box, ANGLES.get((match[6] or "up").lower(), 0), goes_on)


def _without_doubles(found: list[Block]) -> list[Block]:
    """Leaves out what has the kind, the turn and nearly the box of an earlier part."""
    kept: dict[tuple[str, int], list[Block]] = {}
    for block in found:
        others = kept.setdefault((block.kind, block.angle), [])
        if not any(_shared(block, other) > SAME * _union(block, other) for other in others):
            others.append(block)
    single = {id(block) for others in kept.values() for block in others}
    return [block for block in found if id(block) in single]


def _without_parts(found: list[Block]) -> list[Block]:
    """Leaves out the texts of tables, and captions within pictures."""
    wholes = [block for block in found if block.kind in PARTS]

    def is_part(block: Block) -> bool:
        around = (whole for whole in wholes if block.kind in PARTS[whole.kind])
        return any(_shared(block, whole) >= WITHIN * block.area for whole in around)

    return [block for block in found if not is_part(block)]


def _shared(a: Block, b: Block) -> float:
    """Returns the area that lies in both."""
    width = min(a.box[2], b.box[2]) - max(a.box[0], b.box[0])
    height = min(a.box[3], b.box[3]) - max(a.box[1], b.box[1])
    return max(0.0, width) * max(0.0, height)


def _union(a: Block, b: Block) -> float:
    return a.area + b.area - _shared(a, b)


def ask(block: Block) -> Ask | None:
    """Returns what is asked of a part; None of pictures, containers, and what no markdown has."""
    return None if block.kind in (*NOT_READ, *LEFT_OUT) else ASKS.get(block.kind, READ)


MINERU = PageSteps(
    tokens=("<|ref_start|>", "<|ref_end|>", "<|rotate_up|>"),
    name="MinerU2.5",
    system="You are a helpful assistant.",
    layout=Ask("\nLayout Detection:", RAW),
    layout_size=(1036, 1036),
    blocks=blocks,
    ask=ask,
    text=to_markdown,
    ends=("<|im_end|>", "<|endoftext|>"),
    min_side=28,
    max_aspect=50,
)
