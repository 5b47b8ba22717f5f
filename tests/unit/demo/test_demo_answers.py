"""What the tabs make of what they are given: timings, turns, pages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from PIL import Image

from tests.kits.servers.demo_kit import EXAMPLES

pytest.importorskip("gradio", reason="pip install 'vlm-runtime[demo]'")

from vlm.errors import DocumentError, ImageError, InputError
from vlm.processing.chat.conversation import ImagePart
from vlm.registry import catalogs
from vlm_app.demo import documents
from vlm_app.demo.answers import Clock
from vlm_app.demo.ask import AskTab, Turn, input_of
from vlm_app.demo.parts import set_options
from vlm_app.demo.write import WriteTab


def delta(*token_ids: int, reason: str | None = None, of: int = 0):
    output = None if reason is None else SimpleNamespace(token_ids=[0] * of, finish_reason=reason)
    return SimpleNamespace(update=SimpleNamespace(token_ids=token_ids), output=output)


@pytest.fixture
def clock(monkeypatch):
    times = iter((0.0, 0.25, 2.25))
    # not the module's own clock, which other threads ask, too
    monkeypatch.setattr("vlm_app.demo.answers.time", SimpleNamespace(perf_counter=lambda: next(times)))
    return Clock()


def test_the_rate_is_of_the_tokens_after_the_first_delta(clock):
    clock.observe(delta(1, 2))
    assert clock.line == "first token 250 ms · 2 tokens · 8 tokens/s · total 250 ms"
    clock.observe(delta(3, 4, 5, 6, 7, 8, reason="eos", of=8))
    assert clock.line == "first token 250 ms · 8 tokens · 3 tokens/s · total 2.25 s"


def test_a_beam_searchs_tokens_come_at_once(clock):
    clock.observe(delta(reason="length", of=5))
    assert clock.line.startswith(
        "first token 250 ms · 5 tokens · 20 tokens/s · total 250 ms · ended because it reached"
    )


def test_controls_left_alone_leave_it_to_the_model():
    untouched = {"temperature": 0, "top_k": 0, "num_beams": 0, "max_new_tokens": 0, "seed": -1}
    assert set_options(untouched) == {"temperature": 0, "top_k": 0}
    assert set_options({"num_beams": None, "max_new_tokens": 5, "seed": 0}) == {"max_new_tokens": 5, "seed": 0}


def test_a_turn_is_shown_with_its_images_and_told_with_their_places():
    turn = Turn("user", "Which is larger?", ("a.png", "b.png"))
    assert turn.chat_message["content"] == [{"path": "a.png"}, {"path": "b.png"}, "Which is larger?"]
    assert turn.message.parts == (ImagePart(), ImagePart(), "Which is larger?")


def test_pages_are_counted_from_one():
    path = str(EXAMPLES / "pages.pdf")
    assert documents.num_pages(path) == 3
    assert documents.page_image(path, 3).size[0] > 100
    for page, number in ((0, "page 0"), (4, "page 4"), (None, "no page")):
        with pytest.raises(DocumentError, match=f"^{number} was asked for, the document has 3 pages; type one"):
            documents.page_image(path, page)


def test_documents_that_cannot_be_read_are_named_without_their_folder(tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 and nothing more")
    for name, error in (("notes.png", ImageError), ("broken.pdf", DocumentError)):
        with pytest.raises(error, match=f"^{name} is no") as raised:
            documents.num_pages(str(tmp_path / name))
        assert str(tmp_path) not in str(raised.value)
    with pytest.raises(InputError, match="no document yet"):
        documents.page_image(None, 1)


def test_a_preview_is_no_larger_than_what_is_shown(tmp_path):
    path = str(EXAMPLES / "pages.pdf")
    count, first = documents.first_page(path)
    assert count == 3 and first.width == documents.page_image(path, 1).width <= documents.PREVIEW_WIDTH
    Image.new("RGB", (2000, 1000)).save(tmp_path / "wide.png")
    assert documents.preview(str(tmp_path / "wide.png"), 1).size == (667, 334)


def fake(name: str, supports_chat: bool = False):
    """An asynchronous pipeline, as far as tabs look at it."""
    family = catalogs.families()[name]
    capabilities = SimpleNamespace(
        takes_images=family.takes_images, supports_chat=supports_chat, one_image_a_prompt=False
    )  # fmt: skip
    tokenizer = SimpleNamespace(languages=None)
    return SimpleNamespace(pipeline=SimpleNamespace(family=family, tokenizer=tokenizer, capabilities=capabilities))


def test_languages_are_those_that_a_model_can_be_told():
    many = fake("bart")
    many.pipeline.tokenizer.languages = SimpleNamespace(ids={"ro_RO": 7, "en_XX": 4})
    tab = WriteTab({"mini-t5": fake("t5"), "t5-small": fake("t5"), "mbart": many, "wmt": fake("fairseq")})
    assert tab.languages("mini-t5") == ["en", "de"]
    assert tab.languages("t5-small") == ["en", "de", "fr", "ro"]
    assert tab.languages("mbart") == ["en_XX", "ro_RO"]
    assert tab.languages("wmt") == []
    assert [update["visible"] for update in tab.choices("Translate", "wmt")] == [False, False]
    assert [update["value"] for update in tab.choices("Translate", "mbart")] == ["en_XX", "ro_RO"]


def test_a_decoder_alone_is_asked_without_images():
    opt = fake("opt")
    assert AskTab({"opt": opt}).title == "Ask"
    assert input_of(opt, (Turn("user", "Once"), Turn("assistant", "upon"), Turn("user", "a"))) == ({"prompt": "a"}, ())


def test_a_conversation_keeps_its_images_in_their_places():
    llava = fake("llava", supports_chat=True)
    turns = (Turn("user", "One?", ("a.png",)), Turn("assistant", "1"), Turn("user", "Two?", ("b.png",)))
    source, files = input_of(llava, turns)
    assert files == ("a.png", "b.png") and [len(m.parts) for m in source["messages"].messages] == [2, 1, 2]
    with pytest.raises(InputError, match="no image yet"):
        input_of(llava, turns[1:2])
