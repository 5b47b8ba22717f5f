"""Prompts: templates, placeholders, conversations, and the ids that stand for images."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from transformers import Blip2Processor, BlipImageProcessor, CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast

from visual_engines.families.blip2 import as_question
from vlm.artifacts.hugging_face.chat_template import read_template
from vlm.errors import EngineError, InputError
from vlm.processing.chat.conversation import Conversation
from vlm.processing.chat.prompts import Prompts
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.catalogs import families
from vlm.registry.spec import ChatFormat

WORDS = ["<unk>", "<s>", "</s>", "<pad>", "USER", "ASSISTANT", ":", "what", "is", "this", "?", "a", "cat", "and", ".",
         "Question", "Answer", "describe"]  # fmt: skip
# as llava-hf writes it
LLAVA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
FEATURES, VOCABULARY = 4, 100


def fast(*special: str, template: str = "<s> $A") -> PreTrainedTokenizerFast:
    tokenizer = FastTokenizer(models.WordLevel({w: i for i, w in enumerate([*WORDS, *special])}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<pad>", *special])
    ends = [(token, WORDS.index(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(template, None, ends)
    ids = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ids)


def prompts(folder, **form) -> Prompts:
    return Prompts.load(ChatFormat(**form), Tokenizer.from_dir(folder), folder, VOCABULARY)


def read(messages) -> Conversation:
    return Conversation.from_messages(messages, 100)


def as_rows(ids, image_id):
    """Hugging Face's placeholders as rows of the prompt table."""
    row, found = VOCABULARY, []
    for token in ids:
        found.append(row if token == image_id else token)
        row += token == image_id
    return found


def test_llava_reads_what_its_processor_gives(tmp_path):
    """The same ids: a question about an image, an interleaved one, a conversation, and words alone."""
    processor = LlavaProcessor(
        CLIPImageProcessor(size=8, crop_size=8), fast("<image>"), patch_size=4, chat_template=LLAVA,
        vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(tmp_path)
    ours, image_id = prompts(tmp_path), processor.tokenizer.convert_tokens_to_ids("<image>")
    picture = Image.new("RGB", (8, 8))
    image, says = {"type": "image"}, lambda text: {"type": "text", "text": text}
    turns = [
        [{"role": "user", "content": [image, says("what is this?")]}],
        [{"role": "user", "content": [image, says("what is this?")]},
         {"role": "assistant", "content": [says("a cat.")]},
         {"role": "user", "content": [says("and this?"), image, image]}],
        [{"role": "user", "content": [says("describe a cat")]}],
    ]  # fmt: skip
    for conversation in turns:
        count = sum(part["type"] == "image" for turn in conversation for part in turn["content"])
        text = processor.apply_chat_template(conversation, add_generation_prompt=True)
        want = processor(images=[picture] * count or None, text=text)["input_ids"][0]
        assert ours.ids(ours.of_conversation(read(conversation), count), [FEATURES] * count) == as_rows(want, image_id)
    question = ours.of_prompt("what is this?", 1)
    assert question == processor.apply_chat_template(turns[0], add_generation_prompt=True)
    raw = "USER: <image> and <image> ? ASSISTANT:"
    want = processor(images=[picture] * 2, text=raw)["input_ids"][0]
    assert ours.ids(raw, [FEATURES] * 2) == as_rows(want, image_id)


@pytest.mark.parametrize("template", ["<s> $A", "$A </s>"])
def test_blip2_reads_what_its_processor_gives(template, tmp_path):
    tokenizer = fast(template=template)
    processor = Blip2Processor(BlipImageProcessor(), tokenizer, num_query_tokens=FEATURES)
    processor.save_pretrained(tmp_path)
    ours = prompts(tmp_path, images="first", question=as_question)
    image_id, picture = processor.tokenizer.convert_tokens_to_ids("<image>"), Image.new("RGB", (8, 8))
    for given, text in (("what is this?", "Question: what is this? Answer:"), ("a cat", "a cat"), ("", ""),
                        ("Question: what? Answer:", "Question: what? Answer:")):  # fmt: skip
        assert ours.of_prompt(given, 1) == text
        want = processor(images=picture, text=text)["input_ids"]
        want = want[0] if isinstance(want[0], list) else want
        assert ours.ids(text, [FEATURES]) == as_rows(want, image_id)
        assert ours.ids(text, []) == tokenizer(text)["input_ids"], "words alone"


def test_a_tokenizer_that_does_not_know_the_placeholder(tmp_path):
    fast().save_pretrained(tmp_path)
    ours = prompts(tmp_path)
    rows = [*range(100, 104)]
    assert ours.ids("what <image> is <image>", [4, 2]) == [1, 7, *rows, 8, 104, 105]
    assert ours.ids("what <image>", [4], given_rows=3) == [1, 7, *range(103, 107)]
    assert ours.of_prompt("is this?", 2) == "<image><image>is this?", "no template: images come first"


@pytest.mark.parametrize("images", ["inline", "first"])
@pytest.mark.parametrize("placeholder", [(), ("<image>",)])
def test_tokens_that_the_model_has_not_learned_are_no_rows_of_an_image(placeholder, images, tmp_path):
    """Tokenizers may have more tokens than a model rows, the placeholder among them."""
    fast("<mark>", *placeholder).save_pretrained(tmp_path)
    form, vocab_size = ChatFormat(images=images), len(WORDS)
    ours = Prompts.load(form, Tokenizer.from_dir(tmp_path), tmp_path, vocab_size)
    assert set(range(vocab_size, vocab_size + 4)) < set(ours.ids("what <image> is", [4]))
    with pytest.raises(InputError, match=r"a token of the tokenizer, id 18, .* vocabulary of 18; leave it out\."):
        ours.ids("what <image> <mark>", [4])


def test_templates_that_have_a_placeholder_of_their_own(tmp_path):
    """Of the folder or the family, and in a text that is taken as it is."""
    fast().save_pretrained(tmp_path)
    template = "{% for m in messages %}{{ m['content'].replace('<image>', '<picture>') + ' .' }}{% endfor %}"
    ours = prompts(tmp_path, template=template, placeholder="<picture>")
    assert ours.of_prompt("is <image> this?", 1) == "is <picture> this? ."
    for text in (ours.of_prompt("is <image> this?", 1), "is <picture> this? ."):
        assert ours.ids(text, [2]) == [1, 8, 100, 101, 9, 10, 14]


def test_templates_of_words_alone(tmp_path):
    """One that takes contents as texts and brings its own special tokens, which are not doubled."""
    template = "{{ bos_token }}{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + eos_token }}{% endfor %}"
    tokenizer = fast()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    ours = prompts(tmp_path)
    turns = read([{"role": "user", "content": "what is <image> this"}])
    assert ours.of_conversation(turns, 1) == "<s>user : what is <image> this</s>"
    conversation = [{"role": "user", "content": "what is this"}]
    want = tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=True)["input_ids"]
    assert ours.ids(ours.of_conversation(read(conversation), 0), []) == want


TEMPLATES = {
    "JSON, as it is":
        "{{ messages | tojson }}|{{ messages[0] | tojson(indent=1) }}|{{ 'ü' | tojson(ensure_ascii=True) }}",
    "what there is not": "{% if tools is not none or documents is not none %}x{% endif %}{{ tools }}",
    "special tokens": "{{ pad_token }}{{ unk_token }}{{ bos_token }}{{ cls_token is defined }}",
    "the day, where it is known": "{{ strftime_now('%Y') if strftime_now is defined else 2024 }}",
}  # fmt: skip


# as they go through a conversation; each reads a "type" of something
KINDS_OF_CONTENT = {
    "texts, calls of tools": (
        "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% for tool in m.tool_calls or [] %}"
        "{{ tool['type'] + tool['function']['name'] }}{% endfor %}{% endfor %}"),
    "texts, cut": (
        "{% for m in messages %}{% set content = m['content'] %}{% if '?' in content %}"
        "{% set content = content.split('?')[-1] %}{% endif %}{{ m.type }}{{ content | trim }}{% endfor %}"),
    "parts of a variable": (
        "{% for m in messages %}{% set parts = m.content %}{% for part in parts %}"
        "{{ part.text if part.type == 'text' }}{% endfor %}{% endfor %}"),
    "parts of a macro's": (
        "{% macro written(content) %}{% for part in content %}{{ part['text'] }}{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ written(m.content) }}{% endfor %}"),
    "the first part, and the others": (
        "{% for m in messages %}{{ m['content'][0]['type'] }}{% for part in m['content'][1:] | reverse %}"
        "{{ part['text'] }}{% endfor %}{% endfor %}"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS_OF_CONTENT)
def test_contents_are_texts_to_a_template_that_goes_through_no_parts(kind, tmp_path):
    """As DeepSeek-R1-Distill's is, which reads the types of tools."""
    tokenizer, template = fast(), KINDS_OF_CONTENT[kind]
    tokenizer.save_pretrained(tmp_path)
    turns = [{"role": "user", "content": "what is this?"}, {"role": "assistant", "content": "a cat"},
             {"role": "user", "content": "and this? and?"}]  # fmt: skip
    whole = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    given = turns if kind.startswith("texts") else whole
    want = tokenizer.apply_chat_template(given, chat_template=template, tokenize=False)
    assert prompts(tmp_path, template=template).of_conversation(read(turns), 0) == want


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_templates_are_given_what_hugging_face_gives_them(template, tmp_path):
    tokenizer = fast()
    tokenizer.save_pretrained(tmp_path)
    messages = [{"role": "user", "content": "is \"ü\" < '日本' & 3 > 2?"}]
    # without a word on types of parts, contents are texts
    found = prompts(tmp_path, template=template).of_conversation(read(messages), 0)
    assert found == tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)


def test_families_have_their_own_templates(tmp_path):
    fast("<image>").save_pretrained(tmp_path)
    found = {}
    for name in ("llava", "vila"):
        form = families()[name].chat_format
        ours = Prompts.load(form, Tokenizer.from_dir(tmp_path), tmp_path, VOCABULARY)
        turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is this?"}]},
                 {"role": "assistant", "content": "a cat."}, {"role": "user", "content": "and this?"}]  # fmt: skip
        found[name] = ours.of_conversation(read(turns), 1)
        assert ours.of_prompt("this <image> and <image>?", 2).endswith("USER: this <image>\n and <image>\n? ASSISTANT:")
    assert found["llava"] == "USER: <image>\nwhat is this? ASSISTANT: a cat.</s>USER: and this? ASSISTANT:"
    assert found["vila"].startswith("A chat between a curious user") and found["vila"].endswith(found["llava"])


def test_placeholders_and_images_are_counted(tmp_path):
    fast("<image>").save_pretrained(tmp_path)
    ours = prompts(tmp_path, template=LLAVA)
    for text, count, said in (
        ("<image> what?", 2, "1 <image> placeholder and 2 images were given"),
        ("<image> and <image>?", 1, "2 <image> placeholders and 1 image was given"),
        ("a <image>", 0, "1 <image> placeholder and 0 images were given"),
    ):
        with pytest.raises(InputError, match=f"^the prompt has {said}; give one for each.$"):
            ours.of_prompt(text, count)
    turns = read([{"role": "user", "content": "what?"}])
    with pytest.raises(InputError, match="0 <image> placeholders and 1 image was given"):
        ours.of_conversation(turns, 1)


STRIPPING = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize("template", [LLAVA, STRIPPING], ids=["as it is", "stripped"])
def test_a_last_message_is_gone_on_with_as_in_hugging_face(tmp_path, template):
    """What the template puts after it is cut off; its end may look like that."""
    tokenizer = fast()
    tokenizer.save_pretrained(tmp_path)
    ours = prompts(tmp_path, template=template)
    for last in ("a cat", "a cat ", " s", "a\n"):
        turns = [{"role": "user", "content": "what is this?"}, {"role": "assistant", "content": last}]
        whole = [{**t, "content": [{"type": "text", "text": t["content"]}]} for t in turns]
        given = turns if template is STRIPPING else whole
        want = tokenizer.apply_chat_template(
            given, chat_template=template, continue_final_message=True, tokenize=False, add_generation_prompt=False
        )
        assert ours.of_conversation(read(turns), 0, continue_final_message=True) == want
    for wrong in (turns[:1], [turns[0], {"role": "assistant", "content": " "}]):
        with pytest.raises(InputError, match="needs a last message of the assistant"):
            ours.of_conversation(read(wrong), 0, continue_final_message=True)
    with pytest.raises(InputError, match="leaves the last message out"):
        prompts(tmp_path, template="{{ messages[0]['content'] }}").of_conversation(
            read(turns), 0, continue_final_message=True
        )


def test_conversations_that_cannot_go_on(tmp_path):
    fast().save_pretrained(tmp_path)
    turns = read([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    with pytest.raises(InputError, match="no chat template"):
        prompts(tmp_path).of_conversation(turns, 0)
    with pytest.raises(InputError, match="the last message is the assistant's"):
        prompts(tmp_path, template=LLAVA).of_conversation(turns, 0)
    refusing = "{{ raise_exception('only one turn') }}"
    with pytest.raises(InputError, match="does not take this conversation: only one turn"):
        prompts(tmp_path, template=refusing).of_conversation(Conversation(turns.messages[:1]), 0)
    with pytest.raises(EngineError, match="template is damaged"):
        prompts(tmp_path, template="{% for").of_conversation(Conversation(turns.messages[:1]), 0)


def test_templates_reach_nothing(tmp_path):
    fast().save_pretrained(tmp_path)
    turns = read([{"role": "user", "content": "a"}])
    for template in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% for x in range(999999999) %}{% endfor %}"):
        with pytest.raises(InputError, match="does not take this conversation"):
            prompts(tmp_path, template=template).of_conversation(turns, 0)


def test_where_templates_are_kept(tmp_path):
    def found(with_images: bool = True) -> str | None:
        return read_template(tmp_path, with_images=with_images)

    assert found() is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [
        {"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]}))  # fmt: skip
    assert found() == "D"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": {"tools": "T", "default": "N"}}))
    assert found() == "N"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert found() == found(with_images=False) == "F"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert (found(), found(with_images=False)) == ("J", "F")
    (tmp_path / "chat_template.json").write_text("{")
    with pytest.raises(EngineError, match="is damaged"):
        found()


def test_of_several_templates_the_one_counts_that_hugging_face_takes(tmp_path):
    """A processor's legacy file before the one that its tokenizer reads."""
    processor = LlavaProcessor(CLIPImageProcessor(size=8, crop_size=8), fast("<image>"), patch_size=4,
                               vision_feature_select_strategy="default", chat_template="F")  # fmt: skip
    processor.save_pretrained(tmp_path)
    for named, template in {"chat_template.json": "J", "processor_config.json": "P"}.items():
        file = tmp_path / named
        settings = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**settings, "chat_template": template}))
        theirs = LlavaProcessor.from_pretrained(tmp_path)
        assert read_template(tmp_path, with_images=True) == theirs.chat_template == template
        assert read_template(tmp_path, with_images=False) == theirs.tokenizer.chat_template == "F"
