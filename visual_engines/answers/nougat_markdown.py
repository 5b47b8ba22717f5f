"""Nougat's text -> markdown: the published post-processing, step by step.

The steps are those of Blecher et al. (arXiv:2308.13418) as their NougatTokenizer applies them, but for these:
- near-equal lines are compared with difflib, which needs no further package;
- no blank is added at the ends of a page, since pages are joined as paragraphs here;
- a repeating tail keeps its first turn as it is, where the original looks for the end of a sentence;
- run-on lists lose no text: the original drops items of one word, and what stands before a dash in a `*` list.
"""

from __future__ import annotations

import difflib
import re

MISSING = "[MISSING_PAGE_POST]"
MIN_REPETITION = 30  # characters
MIN_RUN = 15  # near-equal lines that are no list any more

# (what, by what); all see the text as lines
_BEFORE_LISTS = [
    # headings: too long to be one; without a title; an enumeration alone
    (r"(?:\n|^)#+ \d*\W? ?(.{100,})", r"\n\1"),
    (r"\n\* \[leftmargin=\*\]\n", r"\n"),
    (r"^#+ (?:[\d+\.]+|[ixv\.]+)?\s*(?:$|\n\s*)", ""),
]
_AFTER_REPETITIONS = [
    # references: endless initials; an empty bracket behind the number
    (r"^\* \[\d+\](\s?[A-W]\.+\s?){10,}.*$", ""),
    (r"^(\* \[\d+\])\[\](.*)$", r"\1\2"),
    # variables that came out as _x__i_ or _x_
    (r"([\s.,()])_([a-zA-Z0-9])__([a-zA-Z0-9]){1,3}_([\s.,:()])", r"\1\\(\2_{\3}\\)\4"),
    (r"([\s.,\d])_([a-zA-Z0-9])_([\s.,\d;])", r"\1\\(\2\\)\3"),
    # a character alone above or below the page, its number for one
    (r"\A\w\n\n|\n\n\w\Z", ""),
    # footnotes
    (r"(\nFootnote .*?:) (?:footnotetext|thanks):\W*(.*(?:\n\n|$))", r"\1 \2"),
    (r"\[FOOTNOTE:.+?\](.*?)\[ENDFOOTNOTE\]", ""),
]
_AFTER_TABLES = [
    (r"\\begin{array}\[\]{", r"\\begin{array}{"),
    (r"\\begin{tabular}{([clr ]){2,}}[&\s]*(\\\\)? \\end{tabular}", ""),
    (r"(\*\*S\. A\. B\.\*\*\n+){2,}", ""),
    (r"^#+( [\[\d\w])?$", ""),
    (r"^\.\s*$", ""),
]
_MARKDOWN = [
    # an equation's number beside it becomes its tag
    (r"^\(([\d.]+[a-zA-Z]?)\) \\\[(.+?)\\\]$", r"\\[\2 \\tag{\1}\\]"),
    (r"^\\\[(.+?)\\\] \(([\d.]+[a-zA-Z]?)\)$", r"\\[\1 \\tag{\2}\\]"),
    (r"^\\\[(.+?)\\\] \(([\d.]+[a-zA-Z]?)\) (\\\[.+?\\\])$", r"\\[\1 \\tag{\2}\\] \3"),
    (r"\\\. ", ". "),
    # bold in formulas
    (r"\\bm{", r"\\mathbf{"),
    (r"{\\\\bm ", r"\\mathbf{"),
    (r"\\mbox{ ?\\boldmath\$(.*?)\$}", r"\\mathbf{\1}"),
    # addresses become links
    (r"((?:https?|ftp)://[\w-]+(?:\.[\w-]+)+[\w.,@?^=%&:/~+#-]*[\w@?^=%&/~+#-])", r"[\1](\1)"),
]


def to_markdown(text: str) -> str:
    """Makes of a page as Nougat wrote it tidy markdown, without blanks at its ends."""
    text = _apply(_BEFORE_LISTS, text.strip())
    text = _without_dangling_title(text)
    text = truncate_repetition(text)
    text = _apply(_AFTER_REPETITIONS, mark_hallucinated_lines(text))
    text = "\n".join(_split_run_on_list(line) for line in text.split("\n"))
    text = _apply(_AFTER_TABLES, correct_tables(text))
    text = _apply(_MARKDOWN, re.sub(r"\n{3,}", "\n\n", text))
    return _with_fences_on_lines(text).strip()


def _apply(steps: list[tuple[str, str]], text: str) -> str:
    for pattern, replacement in steps:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def _with_fences_on_lines(text: str) -> str:
    """Algorithms between ``` and ```; an unclosed one is left alone."""
    parts = text.split("```")
    for i in range(1, len(parts) - 1, 2):
        parts[i] = f"\n{parts[i].strip()}\n"
    return "```".join(parts)


def _without_dangling_title(text: str) -> str:
    """Drops a heading at the very end, with nothing below it: it is most likely made up."""
    body, _, last = text.rpartition("\n")
    return body.rstrip() if body.strip() and re.match(r"#+ ", last) else text


def truncate_repetition(text: str) -> str:
    """Keeps the first turn alone of text that repeats itself at its end, by `MIN_REPETITION` characters or more."""
    lower = text.lower()
    lengths = range(MIN_REPETITION, len(lower) // 2 + 1)
    length = next((n for n in lengths if lower[-n:] == lower[-2 * n : -n]), None)
    if length is None:
        return text
    end = len(lower)
    while end >= 2 * length and lower[end - length : end] == lower[end - 2 * length : end - length]:
        end -= length
    return text[:end].rstrip()


def mark_hallucinated_lines(text: str) -> str:
    """Replaces a long run of lines that are equal but for their numbers (references that never end) by a mark."""
    lines = text.split("\n")
    texts = [re.sub(r"[\d_]|\*\*", "", line).strip() for line in lines]
    result, at = [], 0
    while at < len(lines):
        end = _run_end(texts, at)
        if end - at > MIN_RUN:
            result += ["", MISSING, ""]
        else:
            result += lines[at:end]
        at = end
    return re.sub(r"## References\n+(\[MISSING_PAGE_POST\])", r"\n\n\1", "\n".join(result))


def _run_end(texts: list[str], start: int) -> int:
    """Returns the line after the run of near-equal lines that begins at `start`; blank lines inside it do not count."""
    last = start
    for i in range(start + 1, len(texts)):
        if not texts[i]:
            continue
        if not _alike(texts[last], texts[i]):
            break
        last = i
    return last + 1


def _alike(a: str, b: str) -> bool:
    if not (3 < len(a) < 200 and 3 < len(b) < 200) or a.startswith("[MISSING_PAGE"):
        return False
    return a == b or difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() > 0.9


def _split_run_on_list(line: str) -> str:
    """Splits `- one - two - three` on one line -> a line an item, deeper by the dots of its number."""
    sign = line[:2]
    if sign not in ("- ", "* ") or f" {sign}" not in line:
        return line
    items = [item.strip() for item in _outside_formulas(line[2:].split(f" {sign}"), f" {sign}")]
    return "\n".join("\t" * _level(item) + sign + item for item in items if item)


def _outside_formulas(parts: list[str], separator: str) -> list[str]:
    """Joins again what was split inside a formula: the dash of `\\(a - b\\)` begins no item."""
    items = [parts[0]]
    for part in parts[1:]:
        if items[-1].count("\\(") > items[-1].count("\\)"):
            items[-1] += separator + part
        else:
            items.append(part)
    return items


def _level(item: str) -> int:
    number, _, rest = item.partition(" ")
    has_number = rest and re.fullmatch(r"[\dixv]+(?:\.[\dixv]+)*", number, flags=re.IGNORECASE)
    return number.count(".") if has_number else 0


def correct_tables(text: str) -> str:
    """Drops lines that are no table any more, and puts LaTeX tables on lines of their own."""
    broken = lambda line: (  # noqa: E731
        line.count("\\begin{tabular}") > 15 or line.count("\\multicolumn") > 60 or line.count("&") > 400
    )
    text = "\n".join("" if broken(line) else line for line in text.split("\n"))
    text = text.replace("\\begin{table} \\begin{tabular}", "\\begin{table}\n\\begin{tabular}")
    text = text.replace("\\end{tabular} \\end{table}", "\\end{tabular}\n\\end{table}")
    text = text.replace("\\end{table} Tab", "\\end{table}\nTab")
    text = re.sub(r"(^.+)\\begin{tab", r"\1\n\\begin{tab", text, flags=re.MULTILINE)
    text = text.replace(r"\begin{tabular}{l l}  & \\ \end{tabular}", "")
    return text.replace("\\begin{tabular}{}\n\n\\end{tabular}", "")
