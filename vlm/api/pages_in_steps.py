"""Pages that are read in steps, among an engine's other inputs: a page's layout, then its parts, then its text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlm.api.outputs import Output
from vlm.errors import InputError, VlmError
from vlm.processing.chat.conversation import Conversation, ImagePart, Message
from vlm.processing.media.documents.page_parts import PageImage, PagePart, check_blocks
from vlm.registry.page_steps import Ask, Block, PageSteps
from vlm.requests.pixels import ImagePixels

WORST = ("loop", "length")  # how a page ends if a step of it ends so
Inputs = list[tuple[int, Any]]  # with the number of each


@dataclass(frozen=True)
class PartInput:
    """A part of a page as an input."""

    page: int  # the number of its input
    ask: Ask
    fields: dict[str, Any]


@dataclass(eq=False)
class _Page:
    """A page under way."""

    image: PageImage
    beside: dict[str, Any]  # what its input has beside the image: an adapter
    layout: Output | None = None
    blocks: Sequence[Block] = ()
    num_asked: int = 0
    answers: dict[int, Output] = field(default_factory=dict)  # by the number of the block


class PagesInSteps:
    """Reads inputs that are images alone. Inputs begin in any thread; results are taken in one."""

    def __init__(self, steps: PageSteps):
        self._steps = steps
        self._pages: dict[int, _Page] = {}  # by the number of the input
        self._parts: dict[int, tuple[int, int]] = {}  # the number of a part's input -> its page's, the block's
        self._numbers = itertools.count(-1, -1)  # of parts: a caller's inputs have theirs from 0 on

    def begin(self, number: int, value: Any, num_outputs: int) -> tuple[Any, Mapping[str, Any]]:
        """Returns what an engine is given of an input, and the settings of its step. Raises InputError for a page of
        which several outputs are asked for."""
        if isinstance(value, PartInput):
            if value.page not in self._pages:
                raise InputError("another part of the page could not be read.")
            return value.fields, value.ask.settings
        if (source := lone_image(value)) is None:
            return value, {}
        if num_outputs > 1:
            raise InputError("a page that is read in steps has one output; ask for one, or give a prompt.")
        beside = {"lora": value.get("lora")} if isinstance(value, Mapping) else {}
        page = self._pages[number] = _Page(PageImage(source, self._steps), beside)
        return self._fields(page, page.image, self._steps.layout), self._steps.layout.settings

    def take(self, number: int, result: Output | VlmError) -> tuple[Inputs, list[tuple[int, Output | VlmError]]]:
        """Takes the result of an input -> the inputs that follow from it, and the results that are whole now."""
        of_page, block = self._parts.pop(number, (number, None))
        page = self._pages.get(of_page)
        if page is None:  # none, or one that has failed
            return [], [(number, result)] if block is None else []
        if isinstance(result, VlmError):
            del self._pages[of_page]
            return [], [(of_page, result)]
        result = self._without_end(result)
        if block is not None:
            page.answers[block] = result
            return [], self._finished(of_page, page)
        try:
            more = self._parts_of(of_page, page, result)
        except VlmError as error:
            del self._pages[of_page]
            return [], [(of_page, error)]
        return more, self._finished(of_page, page)

    def _parts_of(self, number: int, page: _Page, layout: Output) -> Inputs:
        """Returns the inputs of the parts that a layout names."""
        page.layout, page.blocks = layout, self._steps.blocks(layout.raw_text)
        asks = [(i, ask) for i, block in enumerate(page.blocks) if (ask := self._steps.ask(block)) is not None]
        check_blocks([page.blocks[i] for i, _ in asks])
        page.num_asked, more = len(asks), []
        for i, ask in asks:
            fields = self._fields(page, PagePart(page.image, page.blocks[i]), ask)
            more.append((own := next(self._numbers), PartInput(number, ask, fields)))
            self._parts[own] = number, i
        return more

    def _without_end(self, result: Output) -> Output:
        end = next((end for end in self._steps.ends if result.raw_text.endswith(end)), "")
        return replace(result, raw_text=result.raw_text.removesuffix(end))

    def _fields(self, page: _Page, picture: PageImage | PagePart, ask: Ask) -> dict[str, Any]:
        turns = (Message("system", (self._steps.system,)), Message("user", (ImagePart(), ask.prompt)))
        return {"images": [picture], "messages": Conversation(turns), **page.beside}

    def _finished(self, number: int, page: _Page) -> list[tuple[int, Output | VlmError]]:
        """Returns the page's output, if all parts have been read."""
        if len(page.answers) < page.num_asked or page.layout is None:
            return []
        del self._pages[number]
        steps = [page.layout, *(page.answers[i] for i in sorted(page.answers))]
        reasons = [step.finish_reason for step in steps]
        texts = [page.answers[i].raw_text if i in page.answers else "" for i in range(len(page.blocks))]
        output = replace(
            page.layout,
            text=self._steps.text(list(zip(page.blocks, texts, strict=True))),
            raw_text="\n\n".join(step.raw_text for step in steps),
            token_ids=[token for step in steps for token in step.token_ids],
            logprobs=[logprob for step in steps for logprob in step.logprobs],
            finish_reason=next((reason for reason in WORST if reason in reasons), page.layout.finish_reason),
            top_logprobs=None,
            context_logits=None,
            generation_logits=None,
        )
        return [(number, output)]


def lone_image(value: Any) -> Any:
    """Returns the image of an input that is one image and no words; None of any other."""
    if not isinstance(value, Mapping):
        return None if isinstance(value, str | ImagePixels) else value
    said = {name for name, given in value.items() if given is not None}
    images = value.get("images") if said <= {"images", "lora"} else None
    images = images if isinstance(images, list | tuple) else [images]
    is_image = len(images) == 1 and not isinstance(images[0], ImagePixels)
    return images[0] if is_image else None
