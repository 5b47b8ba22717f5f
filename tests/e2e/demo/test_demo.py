"""The demo through gradio's own client: what each tab answers, as it streams, and what it says of mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.kits.servers.demo_kit import ALL, EXAMPLES, showing
from tests.kits.servers.server_kit import aborts, command, is_empty, load, until
from vlm.errors import InputError

gradio_client = pytest.importorskip("gradio_client", reason="pip install 'vlm-runtime[demo]'")

pytestmark = pytest.mark.slow
SENTENCE = "The old ship is small."
UNHEARD_OF = "Quarks wobble beneath seven velvet trombones."
TIMING = re.compile(r"first token [\d.]+ m?s · \d+ tokens · [\d,]+ tokens/s · total [\d.]+ m?s")


@pytest.fixture(scope="module")
def demo():
    with showing(*ALL) as shown:
        yield shown


@pytest.fixture
def client(demo):
    return gradio_client.Client(demo.url, verbose=False)


def file(path: str | Path):
    return gradio_client.handle_file(str(path))


def scene(text: str, *names: str) -> dict:
    return {"text": text, "files": [file(EXAMPLES / name) for name in names]}


def said(conversation: list[dict]) -> list[str]:
    """The texts of both, in order."""
    return [part["text"] for turn in conversation for part in turn["content"] if part["type"] == "text"]


def test_a_conversation_about_an_image(client):
    conversation, timing, _ = client.predict(scene("Count the green objects.", "scene1.png"), api_name="/ask")
    assert said(conversation) == ["Count the green objects.", "4"]
    assert TIMING.fullmatch(timing)
    conversation, _, _ = client.predict(scene("Read the sign."), api_name="/ask")
    assert said(conversation) == ["Count the green objects.", "4", "Read the sign.", "GCV3U"]


def test_a_model_that_does_not_converse_is_shown_the_last_image(client):
    client.predict(scene("Read the sign.", "scene1.png"), "mini-blip2", api_name="/ask")
    client.predict(scene("Read the sign.", "scene2.png"), "mini-blip2", api_name="/ask")
    conversation, _, _ = client.predict(scene("What does the sign say?"), "mini-blip2", api_name="/ask")
    assert said(conversation)[1::2] == ["GCV3U", "V4F", "V4F"]


def test_a_question_that_fails_is_as_if_it_had_not_been_asked(client):
    client.predict(scene("Read the sign.", "scene1.png"), api_name="/ask")
    with pytest.raises(gradio_client.exceptions.AppError, match="empty"):
        client.predict(scene(" "), api_name="/ask")
    conversation, _, _ = client.predict(scene("Which shape is pink?"), api_name="/ask")
    assert said(conversation) == ["Read the sign.", "GCV3U", "Which shape is pink?", "cross"]


def test_sessions_do_not_hear_each_other(demo, client):
    client.predict(scene("Read the sign.", "scene1.png"), api_name="/ask")
    with pytest.raises(gradio_client.exceptions.AppError, match="no image yet"):
        gradio_client.Client(demo.url, verbose=False).predict(scene("Read the sign."), api_name="/ask")


def test_a_page_streams_in(client):
    states = list(client.submit(file(EXAMPLES / "pages.pdf"), 2, api_name="/read"))
    texts = [text for text, _ in states]
    assert len(texts) > 3 and all(b.startswith(a) for a, b in pairwise(texts[:-1]))
    assert texts[-1] == (EXAMPLES / "table.txt").read_text(encoding="utf-8").strip()
    assert TIMING.fullmatch(states[-1][1])


def test_translations_and_summaries(client):
    notice = json.loads((EXAMPLES / "notices.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert client.predict(SENTENCE, api_name="/write")[0] == "Das alte Schiff ist klein."
    back = client.predict("Das alte Schiff ist klein.", source="de", target="en", api_name="/write")
    assert back[0] == SENTENCE
    assert client.predict(notice["text"], "Summarize", num_beams=3, api_name="/write")[0] == notice["summary"]


def test_many_visitors_at_once_get_what_each_asked_for(demo):
    visitors = [gradio_client.Client(demo.url, verbose=False) for _ in range(4)]
    texts = {SENTENCE: "Das alte Schiff ist klein.", "twenty-five past three": "fünf vor halb vier"}
    jobs = [(want, visitor.submit(text, api_name="/write")) for visitor in visitors for text, want in texts.items()]
    assert [job.result()[0] for _, job in jobs] == [want for want, _ in jobs]


def test_sampling_is_as_the_controls_say(client):
    drawn = [client.predict(UNHEARD_OF, temperature=2, seed=seed, api_name="/write")[0] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    _, timing = client.predict(SENTENCE, max_new_tokens=2, api_name="/write")
    assert " 2 tokens " in timing and timing.endswith("ended because it reached the most tokens allowed")


@pytest.mark.parametrize(
    ("arguments", "endpoint", "sentence"),
    [
        ([{"text": "", "files": []}], "/ask", r"the question is empty; type one\."),
        ([{"text": "How many?", "files": []}], "/ask", r"there is no image yet; .*\."),
        ([None, 1], "/read", r"there is no document yet; .*\."),
        ([file(EXAMPLES / "pages.pdf"), 9], "/read", r"page 9 was asked for, the document has 3 pages; .*\."),
        ([file(EXAMPLES / "page.png"), 0], "/read", r".*minimum.*"),
        ([None], "/write", r"the text is empty; .*\."),
        (["  "], "/write", r"the text is empty; .*\."),
        ([SENTENCE * 300], "/write", r"the text has .*; shorten it, cut it with 'Cut off what is too long', or .*\."),
        ([SENTENCE, "Translate", "en", "de", False, "mini-t5", 0, 1, 0, -3], "/write", r"'Beams' is -3; .*\."),
    ],
)
def test_a_mistake_is_one_sentence(client, arguments, endpoint, sentence):
    with pytest.raises(gradio_client.exceptions.AppError) as raised:
        client.predict(*arguments, api_name=endpoint)
    assert re.fullmatch(sentence, str(raised.value)), raised.value


def test_a_text_that_is_too_long_can_be_cut_off(client):
    text, timing = client.predict(SENTENCE * 300, truncate=True, max_new_tokens=11, api_name="/write")
    assert text and " 11 tokens " in timing


def test_beams_do_not_sample(client):
    with pytest.raises(gradio_client.exceptions.AppError, match="beam search does not sample"):
        client.predict(SENTENCE, temperature=1, num_beams=2, api_name="/write")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "no-such"}, "no-such is not in the list of choices"),
        ({"page": 0}, "Value 0 is less than minimum value 1"),
        ({"page": "first"}, "what was sent is not what the page sends: .*number"),
    ],
)
def test_values_that_no_control_gives_are_told_to_their_sender_alone(client, capfd, options, says):
    with pytest.raises(gradio_client.exceptions.AppError, match=says):
        client.predict(file(EXAMPLES / "page.png"), api_name="/read", **options)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("endpoint", ["/ask", "/read"])
def test_a_file_that_is_no_image_is_named_and_the_servers_folders_are_not(client, tmp_path, endpoint):
    (tmp_path / "notes.png").write_text("no picture")
    given = file(tmp_path / "notes.png")
    arguments = [{"text": "How many?", "files": [given]}] if endpoint == "/ask" else [given, 1]
    with pytest.raises(gradio_client.exceptions.AppError, match="is no PDF and no image that can be read") as raised:
        client.predict(*arguments, api_name=endpoint)
    assert str(raised.value).startswith(("the image", "notes.png"))


def test_our_own_fault_is_no_traceback(demo, client, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr(demo.pipelines["mini-t5"], "request", broken)
    with pytest.raises(gradio_client.exceptions.AppError, match=r"^the demo failed; its terminal says where\.$"):
        client.predict(SENTENCE, api_name="/write")
    assert "a secret of ours" in caplog.text


def test_a_cancelled_answer_frees_its_place(demo, client, monkeypatch):
    aborted = aborts(demo.pipelines["mini-nougat"].llm, monkeypatch)
    reading = client.submit(file(EXAMPLES / "page.png"), 1, api_name="/read")
    until(lambda: len(reading.outputs()) > 1)
    reading.cancel()
    until(lambda: aborted and is_empty(demo.pipelines["mini-nougat"]))


def test_the_command_says_where_the_page_is_and_ends_when_told():
    with command("mini-t5", verb="demo") as (_, address):
        url = f"http://{address}"
        with urllib.request.urlopen(url) as page:
            assert b"vlm demo" in page.read()
        endpoints = gradio_client.Client(url, verbose=False).view_api(return_format="dict")["named_endpoints"]
        assert list(endpoints) == ["/write"]  # the other tabs have no model


def test_the_program_of_the_documentation_runs(demo):
    page = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("http://127.0.0.1:7860/", demo.url)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("GCV3U first token") and done.stdout.endswith("Das alte Schiff ist klein.\n")


def test_other_sites_and_names_are_refused(demo):
    url = f"{demo.url}/gradio_api/run/write"
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, b"{}", headers | {"Content-Type": "application/json"}))
        assert caught.value.code == 403 and json.load(caught.value)["error"]["message"].endswith(".")
    large = urllib.request.Request(f"{demo.url}/gradio_api/upload", b"", {"Content-Length": f"{2**30}"})
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(large)


def test_a_public_page_is_asked_for_at_gradios_servers(monkeypatch):
    from vlm_app.demo import run
    from vlm_app.demo.config import DemoConfig

    config = DemoConfig(port=0, share=True)
    monkeypatch.setattr(run.networking, "setup_tunnel", lambda host, port, *rest: f"http://a.gradio.live?{host}:{port}")
    with run.serve_page(load("mini-t5"), config) as url:
        public, _, local = url.partition("?")
        assert public == "https://a.gradio.live"
        page = urllib.request.Request(f"http://{local}", headers={"Host": "a.gradio.live"})
        assert b"vlm demo" in urllib.request.urlopen(page).read()

    def fails(*args):
        raise RuntimeError("Could not get share link")

    monkeypatch.setattr(run.networking, "setup_tunnel", fails)
    with pytest.raises(InputError, match=r"leave out --share\.$"), run.serve_page(load("mini-t5"), config):
        pass
