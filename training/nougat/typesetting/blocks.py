"""What stands on a page: headings, paragraphs with bold and formulas, lists, displayed formulas, tables."""

from __future__ import annotations

from training.nougat.typesetting.fonts import advance
from training.nougat.typesetting.layout import BASELINE, MIDDLE, Page, Run, Word
from training.nougat.typesetting.text import Writer

GREEK = {"α": "\\alpha", "β": "\\beta", "λ": "\\lambda", "π": "\\pi", "σ": "\\sigma", "θ": "\\theta", "μ": "\\mu"}
OPERATORS = (("+", "+"), ("−", "-"), ("=", "="), ("=", "="), ("<", "<"), (">", ">"))
VARIABLES = "abcdefghkmnpqrstuvwxyzABCDEFGHKLMNPQRSTVXYZ"


def paragraph(page: Page, writer: Writer, length: int, bold: int = 0, math: int = 0, greek: bool = False) -> bool:
    """`length` words with some **bold** spans and \\(formulas\\)."""
    rng, texts = page.rng, writer.prose(length)
    words = [page.plain(text) for text in texts]
    for _ in range(bold):
        start = rng.randrange(length)
        end = min(length, start + rng.randint(1, 3))
        # spans may not touch: **a** **b** could be read as one
        if all(_is_plain(page, word) for word in words[max(0, start - 1) : end + 1]):
            for i in range(start, end):
                before, after = "**" * (i == start), "**" * (i == end - 1)
                words[i] = page.plain(texts[i], "bold", before=before, after=after)
    for _ in range(math):
        i = rng.randrange(length)
        if _is_plain(page, words[i]):
            words[i] = formula(page, "\\(", "\\)", rng.randint(1, 3), greek)
    return page.block(words, first=page.indent, justify=page.justify, ragged=page.ragged)


def _is_plain(page: Page, word: Word) -> bool:
    return len(word.runs) == 1 and word.runs[0].face == page.faces["regular"]


def heading(page: Page, writer: Writer, level: int) -> bool:
    """A larger line, bold or not. What opens a page is its title, `# `; further down size tells `# ` from `## `."""
    rng = page.rng
    size = round(page.size * (rng.uniform(1.55, 2.1) if level == 1 else rng.uniform(1.25, 1.42)) * 2) / 2
    face, sign = "regular" if rng.random() < 0.35 else "bold", "# " if not page.text else "#" * level + " "
    texts = [writer.word() for _ in range(rng.choice((1, 2, 3, 4, rng.randint(1, 7))))]
    words = [page.plain(t, face, size, before=sign if i == 0 else "") for i, t in enumerate(texts)]
    return page.block(words, size * 1.25, size=size, center=rng.random() < 0.15)


def random_items(writer: Writer, count: int) -> list[list[str]]:
    return [[writer.word() for _ in range(writer.rng.randint(1, 6))] for _ in range(count)]


def bullets(page: Page, items: list[list[str]]) -> bool:
    """A list of items of words, `- ` or numbered; as many items as fit."""
    rng, face = page.rng, page.faces["regular"]
    numbered, x = rng.random() < 0.2, page.left + rng.choice((0, rng.uniform(0, 12), rng.uniform(0, 24)))
    sign, loose, done = rng.choice("•••–-"), rng.choice((0.0, rng.uniform(0.0, 0.3), rng.uniform(0.0, 0.8))), 0
    hang = advance(face, page.size, "0") * ((2.4 if numbered else 1.6) + rng.choice((0, 0, rng.uniform(-0.3, 1.6))))
    for i, item in enumerate(items):
        words = [page.plain(text) for text in item]
        lines = page.wrap(words, page.right - x - hang)
        if lines is None or page.y + page.line_height * len(lines) > page.height - 4:
            break
        page.emit("\n") if done else page.start_block()
        baseline = page.y + page.line_height * 0.5 + page.size * BASELINE
        head = f"{i + 1}." if numbered else sign
        page.draw_run(Run(head, face, page.size, reads=head if numbered else "-"), x, baseline)
        page.emit(" ", (x + hang - 2, baseline - MIDDLE * page.size))
        page.flow(words, x + hang, page.line_height)
        page.y += page.line_height * loose
        done += 1
    page.y += page.gap if done else 0
    return done > 0


def display(page: Page, greek: bool) -> bool:
    word = formula(page, "\\[", "\\]", page.rng.randint(2, 4), greek, display=True)
    return page.block([word], page.size * (2.9 if word.rules else 1.7), center=True)


def formula(page: Page, left: str, right: str, terms: int, greek: bool, display: bool = False) -> Word:
    """x^{2}+3y_{1}=\\alpha, displayed also with fractions, as one word."""
    maker = _Formula(page, greek, display)
    for i in range(terms):
        if i:
            maker.operator()
        maker.fraction() if display and page.rng.random() < 0.3 else maker.atom()
    maker.runs[0].before = left + maker.runs[0].before
    maker.runs[-1].after += right
    return Word(maker.runs, maker.rules, maker.x)


class _Formula:
    def __init__(self, page: Page, greek: bool, display: bool):
        self.rng, self.greek = page.rng, greek
        self.size = round(page.size * (1.1 if display else 1.0) * 2) / 2
        self.small = round(self.size * 0.74 * 2) / 2
        self.italic, self.upright = page.faces["italic"], page.faces["regular"]
        self.runs: list[Run] = []
        self.rules: list[tuple[float, float, float]] = []
        self.x = 0.0

    def put(self, run: Run, gap: float = 0.0) -> None:
        run.dx = self.x + gap
        self.x = run.dx + run.width + gap
        self.runs.append(run)

    def operator(self) -> None:
        drawn, reads = self.rng.choice(OPERATORS)
        self.put(Run(drawn, self.upright, self.size, reads=reads), self.size * 0.22)

    def atom(self) -> None:
        """A coefficient, a variable or both, perhaps with an index or a power."""
        rng = self.rng
        if rng.random() < 0.2:
            self.put(Run(str(rng.randint(1, 99)), self.upright, self.size))
            if rng.random() < 0.5:
                return
        if self.greek and rng.random() < 0.15:
            sign = rng.choice(list(GREEK))
            self.put(Run(sign, self.italic, self.size, reads=GREEK[sign]))
            if rng.random() < 0.5:
                self._raised(str(rng.randint(0, 9)), "_{", 0.18)
            return
        self.put(Run(rng.choice(VARIABLES), self.italic, self.size))
        chance = rng.random()
        if chance < 0.3:
            self._raised(rng.choice(("2", "3", "n", "k", "10", "i")), "^{", -0.36)
        elif chance < 0.55:
            self._raised(rng.choice(("0", "1", "2", "i", "j", "n")), "_{", 0.18)

    def _raised(self, text: str, before: str, height: float) -> None:
        self.put(Run(text, self.upright, self.small, dy=self.size * height, before=before, after="}"))

    def fraction(self) -> None:
        start, parts = self.x, []
        for dy, before in ((-self.size * 0.62, "\\frac{"), (self.size * 0.72, "{")):
            first, self.x = len(self.runs), start
            self.atom()
            part = self.runs[first:]
            for run in part:
                run.dy += dy
            part[0].before = before + part[0].before
            part[-1].after += "}"
            parts.append((part, self.x - start))
        width = max(w for _, w in parts) + 4
        for part, w in parts:
            for run in part:
                run.dx += (width - w) / 2
        self.rules.append((start, -self.size * 0.3, start + width))
        self.x = start + width


def random_grid(writer: Writer, rows: int, columns: int) -> list[list[list[str]]]:
    return [[_random_cell(writer) for _ in range(columns)] for _ in range(rows)]


def _random_cell(writer: Writer) -> list[str]:
    rng = writer.rng
    texts = [writer.number()] if rng.random() < 0.4 else [writer.word() for _ in range(1 if rng.random() < 0.8 else 2)]
    return [text.replace("|", "/") for text in texts]


def table(page: Page, texts: list[list[list[str]]]) -> bool:
    """A ruled table from rows of cells of words, read as `| a | b |` lines; False when it does not fit."""
    rng, space, rows, columns = page.rng, page.space(), len(texts), len(texts[0])
    head = "bold" if rng.random() < 0.7 else "regular"
    grid = [
        [[page.plain(t, head if i == 0 else "regular") for t in cell] for cell in row] for i, row in enumerate(texts)
    ]
    breadth = lambda cell: sum(w.width for w in cell) + space * (len(cell) - 1)  # noqa: E731
    pad, height = (
        rng.uniform(4, 9),
        max(page.line_height, page.size * rng.choice((rng.uniform(1.3, 1.7), rng.uniform(1.3, 2.2)))),
    )
    widths = [max(breadth(row[c]) for row in grid) + 2 * pad for c in range(columns)]
    free = page.right - page.left - sum(widths)
    if free < 0 or page.y + height * rows > page.height - 4:
        return False
    stretch = rng.choice((0, 0, rng.random())) * free / columns
    widths = [w + stretch for w in widths]
    left = page.left + rng.choice((0, 0.5)) * (free - stretch * columns)
    _rule(page, left, widths, height, rows, rng.choice(("grid", "grid", "rows", "booktabs")))
    align = [rng.choice((0.0, 0.5, 0.5, 1.0)) for _ in range(columns)]
    page.start_block()
    for i, row in enumerate(grid):
        x, baseline = left, page.y + height * 0.5 + page.size * BASELINE
        for c, cell in enumerate(row):
            page.emit("| " if c == 0 else " | ")
            _set_cell(page, cell, x + pad + align[c] * (widths[c] - 2 * pad - breadth(cell)), baseline)
            x += widths[c]
        page.emit(" |" + ("\n|" + " --- |" * columns if i == 0 else "") + ("\n" if i + 1 < rows else ""))
        page.y += height
    page.y += page.gap
    return True


def _set_cell(page: Page, cell: list[Word], x: float, baseline: float) -> None:
    for i, word in enumerate(cell):
        if i:
            page.emit(" ", (x - page.space() / 2, baseline - MIDDLE * page.size))
        page.draw_word(word, x, baseline)
        x += word.width + page.space()


def _rule(page: Page, left: float, widths: list[float], height: float, rows: int, style: str) -> None:
    right, top, bottom = left + sum(widths), page.y, page.y + height * rows
    for i in range(rows + 1):
        if style in ("grid", "rows") or i in (0, 1, rows):
            page.stroke(left, top + i * height, right, top + i * height)
    if style == "grid":
        for i in range(len(widths) + 1):
            x = left + sum(widths[:i])
            page.stroke(x, top, x, bottom)
