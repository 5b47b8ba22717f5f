"""Which replica a request goes to: the one with the least to do, unless another one has seen what it is about."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack

import pytest

from vlm_app.server.replicas import affinity
from vlm_app.server.replicas.affinity import affinity_keys
from vlm_app.server.replicas.router import MAX_KEYS, Router

NAMES = ("0", "1", "2")


def ask(router: Router, *keys: bytes, among=NAMES) -> str:
    """Who gets a request that ends at once."""
    with router.assigned(keys, among) as name:
        return name


def test_requests_without_a_history_go_round():
    router = Router(NAMES)
    assert [ask(router) for _ in range(6)] == ["0", "1", "2"] * 2


def test_the_one_with_fewest_requests_gets_the_next():
    router = Router(NAMES)
    with router.assigned((), NAMES), router.assigned((), NAMES):
        assert [ask(router) for _ in range(3)] == ["2"] * 3
    assert router.outstanding == dict.fromkeys(NAMES, 0)


def test_a_request_that_fails_is_no_more_under_way():
    router = Router(NAMES)
    with pytest.raises(ValueError), router.assigned((), NAMES):
        raise ValueError
    assert router.outstanding == dict.fromkeys(NAMES, 0)


def test_what_was_seen_goes_where_it_was_seen():
    router = Router(NAMES)
    first = {key: ask(router, key) for key in (b"a", b"b", b"c")}
    assert sorted(first.values()) == list(NAMES)
    assert [ask(router, key) for key in (b"c", b"a", b"a", b"b")] == [first[key] for key in (b"c", b"a", b"a", b"b")]
    assert ask(router, b"new", b"b") == first[b"b"] == ask(router, b"new")


def test_the_first_key_that_was_seen_counts():
    router = Router(NAMES)
    image, prompt = ask(router, b"image"), ask(router, b"prompt")
    assert image != prompt
    assert ask(router, b"image", b"prompt") == image


def test_nobody_gets_much_more_than_its_share():
    router = Router(NAMES)
    with ExitStack() as running:
        for total in range(1, 61):
            running.enter_context(router.assigned((b"the same",), NAMES))
            assert max(router.outstanding.values()) <= 1.25 * total / 3 + 1
        assert min(router.outstanding.values()) > 0


def test_only_those_that_can_be_asked_are():
    router = Router(NAMES)
    seen = ask(router, b"a")
    others = {name for name in NAMES if name != seen}
    assert {ask(router, b"a", among=others) for _ in range(4)} < others  # and then where it was seen last


def test_who_has_ended_has_seen_nothing():
    router = Router(NAMES)
    assert ask(router, b"a") == "0" == ask(router, b"a")
    router.forget("0")
    assert ask(router, b"a") == "1"


def test_the_least_used_keys_are_forgotten():
    router = Router(NAMES)
    for number in range(MAX_KEYS + 10):
        ask(router, b"%d" % number)
        ask(router, b"0")
    assert len(router._last) == MAX_KEYS and b"0" in router._last and b"1" not in router._last


# --- what requests have in common ---
def image(content: str) -> dict:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}


def body(*parts: dict, system: str = "", **more) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": list(parts)}]
    return json.dumps({**more, "messages": messages}).encode()


def test_one_image_is_known_whatever_is_asked_of_it():
    scene = image("A" * 50_000)
    first = affinity_keys(body({"type": "text", "text": "What is it?"}, scene, temperature=0))
    second = affinity_keys(body(scene, image("B" * 100), {"type": "text", "text": "Where?"}, model="m"))
    assert first[0] == second[0] != second[1]


@pytest.mark.parametrize("at", [0, 25_000, 49_999])
def test_other_images_are_told_apart(at):
    """At their ends and by their length; in between none is read."""
    content = "".join(random.Random(0).choices("ABCD", k=50_000))
    changed = f"{content[:at]}X{content[at + 1 :]}" if at != 25_000 else content[:-4]
    assert affinity_keys(body(image(content)))[0] != affinity_keys(body(image(changed)))[0]


def test_beginnings_are_shared_as_far_as_they_go():
    long, user = "You are helpful. " * 100, {"type": "text", "text": "Hello"}
    first, second = affinity_keys(body(user, system=long)), affinity_keys(body(system=long, n=2))
    assert len(first) == 2 and first == second
    third = affinity_keys(body(user, system=long[:600] + "Or not." * 200))
    assert third[0] != first[0] and third[1] == first[1]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'"messages":', b'{"prompt": "short"}', b"\xff" * 5000, b'{"other": "' + b"x" * 5000]
)
def test_nothing_is_common_to_what_has_no_long_prompt(content):
    assert affinity_keys(content) == []


def test_so_many_images_are_looked_at():
    images = b"".join(b'"data:image/png;base64,%d"' % number for number in range(100))
    assert len(affinity_keys(images)) == affinity.MAX_IMAGES
    assert affinity_keys(b"data:image/png;base64,AAAA")  # where no quote ends it
