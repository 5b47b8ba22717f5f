"""Small documents set by ReportLab (drawn by PDFium) and by Chromium, for `foreign`."""

from __future__ import annotations

import io
import random
import subprocess
from pathlib import Path

from PIL import Image

from training.nougat.foreign import SIDE, ForeignPage, Words


def reportlab_pages(count: int, seed: int) -> list[ForeignPage]:
    """ReportLab's own styles on small sheets: titles, paragraphs, lists, tables."""
    import pypdfium2
    from reportlab.platypus import SimpleDocTemplate

    rng, found = random.Random(seed), []
    for i in range(count):
        size, parts = rng.choice(((298, 420), (283, 425), (306, 396), (320, 320))), _parts(rng, i)
        buffer, sides = io.BytesIO(), dict.fromkeys(("leftMargin", "rightMargin", "topMargin", "bottomMargin"), 24)
        SimpleDocTemplate(buffer, pagesize=size, **sides).build([part for part, _ in parts])
        with pypdfium2.PdfDocument(buffer.getvalue()) as document:
            image = document[0].render(scale=rng.choice((100, 150, 200)) / 72).to_pil().convert("RGB")
        found.append(ForeignPage("ReportLab, PDFium", image, "\n\n".join(reads for _, reads in parts)))
    return found


def _parts(rng: random.Random, i: int) -> list[tuple]:
    """What stands on page i, as ReportLab takes it, and what each part reads as."""
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import ListFlowable, Paragraph

    styles, words, face = getSampleStyleSheet(), Words(rng), rng.choice(("Helvetica", "Times-Roman"))
    body = styles["BodyText"].clone("b", fontSize=12, leading=rng.choice((14.4, 16, 18)), fontName=face)
    head = styles["Heading1"].clone("h", fontSize=20, leading=24, fontName=f"{face.split('-')[0]}-Bold")
    title, text = " ".join(words.some(2)), words.filling(rng.randint(50, 110))
    text = rng.choice((text, text.capitalize() + "."))
    parts = [(Paragraph(title, head), f"# {title}")] * (i % 2) + [(Paragraph(text, body), text)]
    if i % 3 == 0:
        parts.append(_table(words, face))
    elif i % 3 == 1:
        items = [" ".join(words.some(rng.randint(1, 4))) for _ in range(rng.randint(2, 4))]
        points = [Paragraph(item, body) for item in items]
        listed = ListFlowable(points, bulletType="bullet", bulletFontSize=12, start="•")
        parts.append((listed, "\n".join(f"- {item}" for item in items)))
    else:
        text = words.filling(rng.randint(40, 90))
        parts.append((Paragraph(text, body), text))
    return parts


def _table(words: Words, face: str) -> tuple:
    from reportlab.lib import colors
    from reportlab.platypus import Table

    rows, every = [words.some(2) for _ in range(words.rng.randint(2, 4))], ((0, 0), (-1, -1))
    style = [("GRID", *every, 0.5, colors.black), ("FONTSIZE", *every, 12), ("FONTNAME", *every, face),
             ("BOTTOMPADDING", *every, 6)]  # fmt: skip
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return Table(rows, style=style), "\n".join([lines[0], "| --- | --- |", *lines[1:]])


HTML = "<body style='margin:{margin}px;font:{size}px/{leading} {face};background:white'>{body}</body>"


def chromium_pages(count: int, seed: int, folder: Path) -> list[ForeignPage]:
    """Chromium's screenshots of plain HTML."""
    rng, found = random.Random(seed), []
    for i in range(count):
        words, (width, height) = Words(rng), rng.choice(((816, 1056), (800, 800), (600, 800)))
        title, paragraphs = " ".join(words.some(2)), [words.filling(rng.randint(40, 100)) for _ in range(2)]
        body = (f"<h1>{title}</h1>" if i % 2 else "") + "".join(f"<p>{p}</p>" for p in paragraphs)
        texts = [f"# {title}"] * (i % 2) + paragraphs
        if i % 3 == 0:
            items = [" ".join(words.some(3)) for _ in range(2)]
            body += "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"
            texts.append("\n".join(f"- {item}" for item in items))
        page, shot = folder / f"{i}.html", folder / f"{i}.png"
        size = round(rng.uniform(8.5, 11) * max(width, height) / SIDE)
        page.write_text(HTML.format(margin=rng.randint(16, 60), size=size, leading=rng.choice((1.2, 1.4, 1.6)),
                                    face=rng.choice(("serif", "sans-serif")), body=body))  # fmt: skip
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--screenshot={shot}",
             f"--window-size={width},{height}", page.as_uri()], check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        found.append(ForeignPage("HTML, Chromium", Image.open(shot).convert("RGB"), "\n\n".join(texts)))
    return found
