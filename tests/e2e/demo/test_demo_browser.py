"""The demo in a real browser: what a visitor does in each tab, with no request to any other address.

Chromium is looked for as `$VLM_CHROMIUM` and on the PATH. Screenshots go to `$VLM_SCREENSHOTS`, else to pytest's own
folder for the test.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.kits.servers.demo_kit import ALL, EXAMPLES, showing
from tests.kits.servers.server_kit import aborts, is_empty, until

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("VLM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium, or set VLM_CHROMIUM"),
]
# counts the states that a part of the page goes through
WATCH = """element => { window.states = new Set();
    new MutationObserver(() => window.states.add(element.innerText)).observe(
        element, {childList: true, subtree: true, characterData: true}); }"""


@pytest.fixture(scope="module")
def demo():
    with showing(*ALL) as shown:
        yield shown


@pytest.fixture(scope="module")
def browser():
    sync_api.expect.set_options(timeout=180_000)  # the first page waits for the processes that read it to start
    with sync_api.sync_playwright() as playwright:
        # root has no sandbox, containers little shared memory
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def page(demo, browser):
    """A fresh page, which must stay at home."""
    asked = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(demo.url)
    yield opened
    context.close()
    home = (demo.url, "data:", "blob:")
    assert asked and not [url for url in asked if not url.startswith(home)]


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    folder = Path(os.environ.get("VLM_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tab(page, name: str):
    """Opens a tab; -> what it holds."""
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel").filter(visible=True)


def ask(panel, question: str) -> None:
    box = panel.get_by_role("textbox").last
    box.fill(question)
    box.press("Enter")


def finished(panel) -> None:
    """Waits for the end of an answer."""
    sync_api.expect(panel.locator(".generating")).to_have_count(0)
    sync_api.expect(panel.locator(".prose.timing")).to_have_text(re.compile(r"\s*first token .* total .*s\s*"))


def test_a_page_is_read_as_it_streams_in_with_its_formulas(page, shots):
    panel = tab(page, "Read a document")
    panel.locator("input[type=file]").set_input_files(EXAMPLES / "math.png")
    sync_api.expect(panel.get_by_text("Page (of 1)")).to_be_visible()
    panel.locator(".prose.page").evaluate(WATCH)
    panel.get_by_role("button", name="Read this page").click()
    sync_api.expect(panel.locator(".prose.page")).to_contain_text("others by night.")
    sync_api.expect(panel.locator(".prose.page .katex-display")).to_be_visible()
    finished(panel)
    assert panel.locator(".prose.page h1").inner_text() == "Waves"
    assert page.evaluate("window.states.size") > 3  # it did not come at once
    assert page.evaluate("document.fonts.ready.then(() => document.fonts.check('16px KaTeX_Main'))")
    page.screenshot(path=shots / "read.png", full_page=True)


def test_a_document_is_turned_over(page, shots):
    panel = tab(page, "Read a document")
    panel.get_by_role("button", name="pages.pdf").click()
    sync_api.expect(panel.get_by_text("Page (of 3)")).to_be_visible()
    picture = panel.locator(".image-frame img")
    first = picture.get_attribute("src")
    panel.get_by_role("spinbutton", name="Page").fill("2")
    # Gradio forgets an event that begins as the one before it ends, now and then
    sync_api.expect(picture).not_to_have_attribute("src", first)
    panel.get_by_role("button", name="Read this page").click()
    sync_api.expect(panel.locator(".prose.page td").first).to_have_text("cod")
    finished(panel)
    page.screenshot(path=shots / "read-table.png", full_page=True)


def test_a_conversation(page, shots):
    panel = tab(page, "Ask about an image")
    panel.locator("input[type=file]").set_input_files(EXAMPLES / "scene1.png")
    sync_api.expect(panel.locator(".thumbnail-image, img[alt='']").first).to_be_visible()
    ask(panel, "Count the green objects.")
    sync_api.expect(panel.locator(".bot")).to_have_text("4")
    finished(panel)
    ask(panel, "Which colour does the star have?")
    sync_api.expect(panel.locator(".bot").last).to_have_text("green")
    finished(panel)
    page.screenshot(path=shots / "ask.png", full_page=True)


@pytest.mark.parametrize("button", ["New conversation", "Clear"])
def test_a_new_conversation_knows_nothing_of_the_last(page, button):
    panel = tab(page, "Ask about an image")
    panel.get_by_role("button", name="Which shape is pink?").click()
    sync_api.expect(panel.get_by_role("textbox").last).to_have_value("Which shape is pink?")
    ask(panel, "Which shape is pink?")
    sync_api.expect(panel.locator(".bot")).to_have_text("cross")
    finished(panel)
    panel.get_by_role("button", name=button).click()
    sync_api.expect(panel.locator(".bot")).to_have_count(0)
    # the page clears itself first, and the server then ends what has been asked by then
    sync_api.expect(panel.locator(".prose.timing", has_text="first token")).to_have_count(0)
    ask(panel, "Which colour does the star have?")
    sync_api.expect(page.locator(".toast-body")).to_contain_text("there is no image yet")


def test_a_translation_and_a_summary(page, shots):
    panel = tab(page, "Translate / summarize")
    panel.get_by_label("Text").fill("The old ship is small.")
    result = panel.get_by_role("textbox", disabled=True)
    panel.get_by_role("button", name="Run").click()
    sync_api.expect(result).to_have_value("Das alte Schiff ist klein.")
    panel.get_by_text("Do not miss the poetry reading").click()
    sync_api.expect(panel.get_by_label("From")).to_be_hidden()
    result = panel.get_by_role("textbox", disabled=True)
    panel.get_by_role("button", name="Run").click()
    sync_api.expect(result).to_have_value(re.compile("^Event: poetry reading .*588.15.$"))
    finished(panel)
    panel.get_by_role("button", name="Sampling").click()
    page.screenshot(path=shots / "write.png", full_page=True)


def test_a_mistake_is_one_sentence_and_leaves_the_page_as_it_was(page, shots, tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    panel = tab(page, "Ask about an image")
    panel.locator("input[type=file]").set_input_files(tmp_path / "notes.png")
    ask(panel, "How many objects are there?")
    toast = page.locator(".toast-body")
    sync_api.expect(toast).to_contain_text(
        "notes.png is no PDF and no image that can be read;"
        " give PDF, PNG, JPEG, TIFF, WebP, GIF, BMP, PPM or JPEG 2000."
    )
    assert "Traceback" not in page.content()
    assert panel.get_by_role("textbox").last.input_value() == "How many objects are there?"
    page.screenshot(path=shots / "mistake.png", full_page=True)


@pytest.mark.parametrize("leave", ["stop", "close"])
def test_who_stops_or_leaves_frees_the_engine(page, demo, monkeypatch, leave):
    aborted = aborts(demo.pipelines["mini-nougat"].llm, monkeypatch)
    panel = tab(page, "Read a document")
    panel.get_by_role("button", name="page.png").click()
    sync_api.expect(panel.get_by_text("Page (of 1)")).to_be_visible()
    panel.get_by_role("button", name="Read this page").click()
    sync_api.expect(panel.locator(".prose.page")).to_contain_text("Harbour")
    if leave == "stop":
        panel.get_by_role("button", name="Stop").click()
    else:
        page.close()
    until(lambda: aborted and is_empty(demo.pipelines["mini-nougat"]))
