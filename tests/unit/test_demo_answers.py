"""What the tabs make of what they are given: timings, turns, pages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.demo_kit import EXAMPLES

pytest.importorskip("gradio", reason="pip install 'vlm[demo]'")

from app.demo import documents
from app.demo.answers import Clock
from app.demo.ask import Turn
from app.demo.parts import given
from vlm.errors import DocumentError, ImageError, InputError


def piece(*token_ids: int, reason: str | None = None, of: int = 0):
    output = None if reason is None else SimpleNamespace(token_ids=[0] * of, finish_reason=reason)
    return SimpleNamespace(delta=SimpleNamespace(token_ids=token_ids), output=output)


@pytest.fixture
def clock(monkeypatch):
    times = iter((0.0, 0.25, 2.25))
    monkeypatch.setattr("app.demo.answers.time.perf_counter", lambda: next(times))
    return Clock()


def test_the_rate_is_of_the_tokens_after_the_first_piece(clock):
    clock.saw(piece(1, 2))
    assert clock.line == "first token 250 ms · 2 tokens · 8 tokens/s · total 250 ms"
    clock.saw(piece(3, 4, 5, 6, 7, 8, reason="eos", of=8))
    assert clock.line == "first token 250 ms · 8 tokens · 3 tokens/s · total 2.25 s"


def test_a_beam_searchs_tokens_come_at_once(clock):
    clock.saw(piece(reason="length", of=5))
    assert clock.line.startswith(
        "first token 250 ms · 5 tokens · 20 tokens/s · total 250 ms · ended because it reached"
    )


def test_controls_left_alone_leave_it_to_the_model():
    untouched = {"temperature": 0, "top_k": 0, "num_beams": 0, "max_new_tokens": 0, "seed": -1}
    assert given(untouched) == {"temperature": 0, "top_k": 0}
    assert given({"num_beams": None, "max_new_tokens": 5, "seed": 0}) == {"max_new_tokens": 5, "seed": 0}


def test_a_turn_is_shown_with_its_images_and_told_with_their_places():
    turn = Turn("user", "Which is larger?", ("a.png", "b.png"))
    assert turn.shown["content"] == [{"path": "a.png"}, {"path": "b.png"}, "Which is larger?"]
    assert [part["type"] for part in turn.message["content"]] == ["image", "image", "text"]


def test_pages_are_counted_from_one():
    path = str(EXAMPLES / "pages.pdf")
    assert documents.num_pages(path) == 3
    assert documents.page_image(path, 3).size[0] > 100
    for page in (0, 4, None):
        with pytest.raises(DocumentError, match=f"page {page} was asked for, the document has 3 pages"):
            documents.page_image(path, page)


def test_documents_that_cannot_be_read_are_named_without_their_folder(tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 and nothing more")
    for name, error in (("notes.png", ImageError), ("broken.pdf", DocumentError)):
        with pytest.raises(error, match=f"^{name} is no") as raised:
            documents.num_pages(str(tmp_path / name))
        assert str(tmp_path) not in str(raised.value)
    with pytest.raises(InputError, match="no document yet"):
        documents.num_pages(None)


def test_a_preview_is_no_larger_than_what_is_shown():
    page = documents.page_image(str(EXAMPLES / "pages.pdf"), 1)
    assert documents.preview(page).width <= documents.PREVIEW_WIDTH
