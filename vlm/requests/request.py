"""What is asked of a model; it is not changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from vlm.errors import InputError
from vlm.requests.adapters import NO_ADAPTER
from vlm.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.requests.answer_form import AnswerForm
    from vlm.requests.image import Image
    from vlm.requests.prompt_table import PromptTable


class Stops(Protocol):
    """The engine knows no text: who does says where to stop."""

    def end(self, token_ids: list[int], num_known: int, *, start: int = 0) -> int | None:
        """Returns how many tokens to keep, of which the output begins at `start` and the first `num_known` were seen
        before; None: go on."""


@dataclass(eq=False, slots=True)  # a frozen one takes three times as long to make, and a call makes one an input
class Request:
    """One input: what the encoder takes, or its output, and the tokens the decoder starts from.

    Ids from the vocabulary's size on stand for rows of the request's prompt table: those of `prompt_table`, then the
    features of `images`. They stand among the encoder's ids, and without an encoder among the decoder's.
    """

    decoder_prompt_token_ids: tuple[int, ...]
    encoder_image: Image | None = None  # whose features the decoder attends to
    encoder_input_ids: tuple[int, ...] | None = None
    encoder_output: Tensor | None = None  # [T, hidden]
    params: SamplingParams = field(default_factory=SamplingParams)
    stops: Stops | None = None  # where the output's text ends it
    images: tuple[Image, ...] = ()
    prompt_table: PromptTable | None = None
    answer_form: AnswerForm | None = None  # how the output is read; None: as all of the model's are
    adapter_id: int = NO_ADAPTER  # of those that the engine has loaded

    def __post_init__(self) -> None:
        ids = self.encoder_input_ids
        if (self.encoder_image is not None) + (ids is not None) + (self.encoder_output is not None) > 1:
            raise InputError("a request takes one of pixel_values, encoder_input_ids and encoder_output.")
        if ids is not None and not ids:
            raise InputError("the text is empty; the encoder needs at least one token.")
        if not self.decoder_prompt_token_ids:
            raise InputError("decoder_prompt_token_ids is empty; it needs at least the decoder's start token.")

    @property
    def adapted(self) -> bool:
        """Says whether an adapter changes what is computed."""
        return self.adapter_id != NO_ADAPTER

    @property
    def source_ids(self) -> tuple[int, ...]:
        """Returns the tokens of a text encoder. Raises InputError where there are none."""
        if self.encoder_input_ids is None:
            raise InputError("the request has no text to encode; give text or encoder_input_ids.")
        return self.encoder_input_ids

    @property
    def source_image(self) -> Image:
        """Returns the image that a decoder attends to. Raises InputError where there is none."""
        if self.encoder_image is None:
            raise InputError("the request has no image to encode; give an image or pixel_values.")
        return self.encoder_image
