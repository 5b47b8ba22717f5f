"""Conversations: what is read of messages, what is wrong with them, and how they grow."""

from __future__ import annotations

import pytest

from vlm.errors import InputError, LengthError
from vlm.processing.chat.conversation import PLACEHOLDER, Conversation, ImagePart, Message, check_messages, split_text

SEEN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "and <image>?"}]},
]


def test_messages_are_read_once_into_types():
    found = Conversation.from_messages(SEEN, 100)
    assert found.messages[0] == Message("system", ("Be brief.",))
    assert found.messages[1].parts == (ImagePart("a.png"), "and <image>?")
    assert found.messages[1].pieces == [PLACEHOLDER, "and ", PLACEHOLDER, "?"]
    assert found.messages[1].text == "and <image>?"
    assert found.images == ["a.png"] and found.num_placed == 2


def test_an_image_may_be_a_path_and_the_limit_unknown():
    part = {"type": "image", "path": "a.png"}  # as transformers has it
    found = Conversation.from_messages([{"role": "user", "content": [part] * 300}])
    assert found.images == ["a.png"] * 300
    with pytest.raises(LengthError, match="300 messages and parts"):
        found.check_size(10)


def test_templates_get_parts_or_one_text():
    message = Message("user", (ImagePart(), "what?"))
    parts = [{"type": "image"}, {"type": "text", "text": "what?"}]
    assert message.for_template(plain=False) == {"role": "user", "content": parts}
    assert message.for_template(plain=True) == {"role": "user", "content": "<image>what?"}


def test_an_image_becomes_its_pages_and_a_text_stays():
    found = Conversation.from_messages(SEEN, 100).with_pages([3])
    assert found.messages[1].parts == (*[ImagePart("a.png")] * 3, "and <image>?") and found.num_placed == 4


def test_a_conversation_grows_without_changing():
    empty = Conversation(())
    said = empty.with_turn("user", ImagePart("a.png"), "what?")
    assert not empty.messages and said.with_turn("assistant", "a cat").messages[:1] == said.messages
    assert said.images == ["a.png"]


def test_more_than_a_model_reads_is_refused_before_it_is_read():
    long = [{"role": "user", "content": "a" * 10**6}]
    many = [{"role": "user", "content": ["?"] * 300}]  # wrong parts, too: nobody has looked at them
    for messages, words in ((long, "1,000,000 characters"), (many, "300 messages and parts")):
        for check in (check_messages, Conversation.from_messages):
            with pytest.raises(LengthError, match=words):
                check(messages, 10)
    with pytest.raises(LengthError, match="300 messages and parts"):
        Conversation((Message("user", ("?",) * 300),)).check_size(10)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is empty"),
        ("hello", "messages is empty|message 1 needs a role"),
        ([{"role": "robot", "content": "a"}], "message 1 needs a role"),
        ([{"role": "user"}], "message 1 needs a role"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "message 1 holds a part of type 'audio'"),
        ([{"role": "user", "content": ["a"]}], "message 1 holds a part of type None"),
        (
            [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}],
            "message 1 holds an image's url; give its pa",
        ),
    ],
)
def test_malformed_conversations(messages, words):
    with pytest.raises(InputError, match=words):
        Conversation.from_messages(messages, 100)


def test_texts_are_split_at_their_placeholders():
    assert split_text("a <image><image> b") == ["a ", PLACEHOLDER, PLACEHOLDER, " b"]
    assert split_text("<image>") == [PLACEHOLDER] and split_text("a") == ["a"] and split_text("") == []


def test_messages_without_parts_count_as_well():
    empty = [{"role": "user", "content": []}] * 300
    for check in (check_messages, Conversation.from_messages):
        with pytest.raises(LengthError, match="300 messages and parts"):
            check(empty, 10)
    with pytest.raises(LengthError, match="300 messages and parts"):
        Conversation.from_messages(empty).check_size(10)
