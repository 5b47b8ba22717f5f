"""Server-sent events."""

from __future__ import annotations

import json

import pytest

from vlm_app.server.http.event_stream import event

TEXT = "a\nb\rc\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029 groß 日"


@pytest.mark.parametrize("item", [{"text": TEXT}, json.dumps({"text": TEXT}, ensure_ascii=False)])
def test_an_event_is_one_line_to_every_reader(item):
    """httpx and others end a line where Python's str.splitlines does."""
    line, end = event(item).splitlines()
    assert end == "" and json.loads(line.removeprefix("data: ")) == {"text": TEXT} and "groß 日" in line
