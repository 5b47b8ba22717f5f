"""What people give -> a Request: images and texts become pixels and token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vlm.artifacts.prompt_tables import PromptTables, TunedPrompt
from vlm.config import ModelConfig
from vlm.errors import InputError, LengthError, listed
from vlm.executor.memory import memory_errors
from vlm.processing.conversation import PLACEHOLDER, Conversation
from vlm.processing.image_inputs import ImageInputs
from vlm.processing.input_fields import (
    ENCODER_KEYS,
    INPUT_KEYS,
    KNOWN_KEYS,
    check_task,
    prompt_table_of,
    rows_of,
    truncation_of,
    with_beginning,
    with_prompt_table,
    with_task,
)
from vlm.processing.prompts import Prompts
from vlm.processing.questions import with_question
from vlm.processing.text_stream import StopStrings
from vlm.processing.tokenization import Tokenizer, no_tokenizer
from vlm.registry.spec import FamilySpec
from vlm.requests.adapters import adapter_id
from vlm.requests.answer_form import AnswerForm
from vlm.requests.image import Image
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class RequestBuilder:
    """Builds the requests of one engine. Used by several threads at once."""

    family: FamilySpec
    config: ModelConfig
    generation: Mapping[str, Any]  # the model's own settings
    tokenizer: Tokenizer | None
    images: ImageInputs
    prompts: Prompts | None  # of a family that is asked in words
    max_encoder_len: int
    has_encoder: bool  # of tokens
    source_vocab_size: int | None = None  # the encoder's; None: the decoder's
    max_seq_len: int = 0
    adapters: Mapping[str, int] = field(default_factory=dict)  # their numbers by their names
    prompt_tables: PromptTables | None = None  # of tasks that requests may name
    _checked_names: set[frozenset[str]] = field(default_factory=set, init=False)  # of fields that go together

    @memory_errors()
    def build(self, source: Any, params: SamplingParams, lora: str | int | None = None) -> Request:
        """Returns the request of an input; `lora`: its adapter where it names none. Raises InputError and its kin with
        one sentence."""
        fields = self.fields(source)
        lora = fields.pop("lora", lora)
        request = self._request(fields, self._without_bad_words(params))
        return request if lora is None else replace(request, adapter_id=adapter_id(lora, self.adapters))

    def _request(self, fields: dict[str, Any], params: SamplingParams) -> Request:
        stops = None
        if params.stop and self.tokenizer:
            stops = StopStrings(self.tokenizer.showing(special_tokens=not params.skip_special_tokens), params.stop)
        if self.prompts is not None:
            return self._chat_request(self.prompts, fields, params, stops)
        image, ids = self.images.of_encoder(fields), fields.get("encoder_input_ids")
        if fields.get("text") is not None:
            ids = self._source_ids(fields)
        ids = None if ids is None else tuple(ids)
        if (target := fields.get("tgt_lang")) is not None:
            params = self._towards(target, params)
        return Request(
            self._decoder_prompt(fields),
            encoder_image=image,
            encoder_input_ids=ids,
            encoder_output=fields.get("encoder_output"),
            params=params,
            stops=stops,
            prompt_table=prompt_table_of(fields),
        )

    def _without_bad_words(self, params: SamplingParams) -> SamplingParams:
        """Returns the settings with the tokens of their bad words, at the beginning of a text and after a space."""
        if not params.bad_words:
            return params
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer; give bad_words_ids instead of bad_words.")
        forms = (form for word in params.bad_words for form in (word, f" {word.lstrip()}"))
        ids = [tuple(self.tokenizer.encode(form)) for form in forms]
        return replace(params, bad_words=(), bad_words_ids=tuple(dict.fromkeys((*params.bad_words_ids, *ids))))

    def _chat_request(
        self, prompts: Prompts, fields: dict[str, Any], params: SamplingParams, stops: StopStrings | None
    ) -> Request:
        """Builds the request of a prompt, with images in it or not."""
        conversation: Conversation | None = fields.get("messages")
        sources = [] if conversation is None else conversation.images
        if sources and fields.get("images"):
            raise InputError("images were given in the messages and besides them; give each once.")
        if sources and self.images.image_processor is None:
            raise InputError(f"{self.family.name} takes text, not images; leave them out of the messages.")
        images = self.images.of_prompt(fields, sources)
        image_rows, grids = [image.rows for image in images], [image.grid for image in images]
        table = prompt_table_of(fields)
        rows, ids = 0 if table is None else len(table), None
        given_ids = fields.get("encoder_input_ids" if self.has_encoder else "decoder_prompt_token_ids")
        suffix, form = self._suffix(fields), None
        limit = truncation_of(fields, self._prompt_limit(params))
        if conversation is not None:
            open_ended = bool(fields.get("continue_final_message"))
            text = prompts.of_conversation(conversation, len(images), continue_final_message=open_ended)
            whole, form = self._of_task(self._bounded(text), fields, images)
            ids = prompts.ids(whole, image_rows, rows, grids=grids)
        elif "raw_prompt" in fields:
            text = self._prompt_text(fields["raw_prompt"], limit)
            ids = prompts.ids(text + suffix, image_rows, rows, grids=grids, limit=limit, cut_part=text, as_given=True)
        elif (prompt := fields.get("prompt", fields.get("text"))) is not None or (images and not given_ids):
            text = self._prompt_text(prompt, limit)
            whole, form = self._of_task(prompts.of_prompt(text + suffix, len(images)), fields, images)
            ids = prompts.ids(whole, image_rows, rows, grids=grids, limit=limit, cut_part=text)
        unknown = {"encoder_output", "src_lang", "tgt_lang"} | (set() if self.has_encoder else {"encoder_input_ids"})
        if names := sorted(unknown & fields.keys()):
            raise InputError(f"{self.family.name} is asked in words: it takes no {listed(names)}.")
        ids = given_ids or (None if ids is None else [*rows_of(table, prompts.vocab_size), *ids])
        if not ids:
            raise InputError("there is no prompt: give prompt=, messages= or token ids.")
        if not self.has_encoder:
            return Request(tuple(ids), params=params, stops=stops, images=images, prompt_table=table)
        if len(ids) > self.max_encoder_len:
            raise LengthError(
                f"the prompt has {len(ids)} tokens with its images, {len(ids) - self.max_encoder_len} more than the"
                " engine was built for; shorten it",
                f"cut it with --truncate (truncate=True), or give --max-encoder-input-len {len(ids)}",
            )
        start = self._decoder_prompt({k: v for k, v in fields.items() if k == "decoder_prompt_token_ids"})
        return Request(
            start,
            encoder_input_ids=tuple(ids),
            params=params,
            stops=stops,
            images=images,
            prompt_table=table,
            answer_form=form,
        )

    def _of_task(self, text: str, fields: dict[str, Any], images: tuple[Image, ...]) -> tuple[str, AnswerForm | None]:
        """Returns what the model reads, and how its answer is read where a task is named."""
        if self.family.prompt_tasks is None:
            return text, None
        words, form = with_task(text, fields, self.family.prompt_tasks, [image.size for image in images])
        return self._bounded(words), form

    @property
    def max_tokens(self) -> int:
        """Returns the tokens that a text may have at most, whatever else a request asks for."""
        return self.max_encoder_len if self.has_encoder else self.max_seq_len

    def _prompt_text(self, prompt: Any, limit: int | None) -> str:
        """Returns a prompt, cut to what is read for `limit` tokens. LengthError for one that is too long for
        certain."""
        if not isinstance(prompt, str | None):
            raise InputError(f"the prompt must be a text; got {type(prompt).__name__}.")
        if limit is not None and self.tokenizer is not None:
            return self.tokenizer.shortened(prompt or "", limit)
        return self._bounded(prompt or "")

    def _suffix(self, fields: dict[str, Any]) -> str:
        """Returns what goes after a text: what is asked for, then what the text was tuned with."""
        suffix, tuned = self._bounded(fields.get("suffix") or ""), fields.get("prompt_table")
        if not isinstance(tuned, TunedPrompt):
            return suffix
        adds_end = self.tokenizer is not None and self.config.eos_token_id in self.tokenizer.ends[1]
        end = self.tokenizer.eos_token if tuned.ends and self.tokenizer is not None and not adds_end else ""
        return f"{suffix}{tuned.suffix}{end}"

    def _bounded(self, text: str) -> str:
        """Raises LengthError for a text of too many tokens, told before it is tokenized; images stand where it says
        so."""
        if self.tokenizer is not None:
            self.tokenizer.check_length(text.replace(PLACEHOLDER, ""), self.max_tokens)
        return text

    def _prompt_limit(self, params: SamplingParams) -> int:
        """Returns how many tokens a prompt may have: an encoder's, or what a decoder holds apart from the new ones."""
        if self.has_encoder:
            return self.max_encoder_len
        new = params.max_new_tokens or params.default_max_new_tokens or params.min_new_tokens
        return max(1, self.max_seq_len - max(1, new))

    def check_images(self, count: int) -> None:
        """Raises LengthError for more images than a request can hold, before any of them is read."""
        if self.images.vision is None or self.prompts is None:
            return
        rows = count * self.images.vision.min_rows
        if rows > self.max_tokens:
            least = "" if self.images.vision.fixed_size else "at least "
            raise LengthError(
                f"{count} images and pages are {least}{rows:,} tokens, the engine was built for"
                f" {self.max_tokens:,}; send fewer."
            )

    def fields(self, source: Any) -> dict[str, Any]:
        """Returns the fields of an input. A bare one is a text for a model of texts, else an image; for one that is
        asked in words, its prompt."""
        if not isinstance(source, Mapping):
            is_text = not self.family.takes_images or (self.prompts is not None and isinstance(source, str))
            if is_text and not isinstance(source, str):
                raise InputError(f"{self.family.name} takes text; got {type(source).__name__}.")
            key = "prompt" if self.prompts is not None else "text"
            return self._with_task({key: source} if is_text else {"images": [source]})
        if not KNOWN_KEYS.issuperset(source):
            unknown = [k for k in source if k not in KNOWN_KEYS]
            raise InputError(f"{listed(unknown)} is unknown in an input; allowed are {listed(INPUT_KEYS, 40)}.")
        fields = self._with_task({k: v for k, v in source.items() if v is not None})
        fields = self._with_named_ids(with_prompt_table(fields))
        if (names := frozenset(fields)) not in self._checked_names:
            self._check_names(fields)
            self._checked_names.add(names)
        if "messages" in fields:
            fields = {**fields, "messages": self.conversation(fields["messages"])}
        return fields

    def _check_names(self, fields: dict[str, Any]) -> None:
        """Raises InputError for fields that the model does not take, or not together, whatever they hold."""
        if not self.family.takes_text and ("text" in fields or "encoder_input_ids" in fields):
            raise InputError(f"{self.family.name} has no text encoder; `prompt` is where its output begins.")
        if not self.family.takes_images and ("images" in fields or "pixel_values" in fields):
            raise InputError(f"{self.family.name} takes text, not images; leave the images out, or load another model.")
        prompt_keys = ("prompt", "raw_prompt", "messages", "text") if self.prompts is not None else ()
        if prompt_keys == () and (unknown := [k for k in ("raw_prompt", "messages") if k in fields]):
            raise InputError(f"{self.family.name} is not asked in words: it takes no {listed(unknown)}.")
        for names in (prompt_keys, ENCODER_KEYS if self.prompts is None else ("images", "pixel_values")):
            if len(both := [k for k in names if k in fields]) > 1:
                raise InputError(f"{listed(both)} were given together; an input has one of them.")

    def conversation(self, messages: Any) -> Conversation:
        """Returns what was read of messages, or reads them; LengthError where they are too much for the model."""
        if not isinstance(messages, Conversation):
            return Conversation.from_messages(messages, self.max_tokens)
        messages.check_size(self.max_tokens)
        return messages

    def _with_task(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Puts what a task stands for in its place: where the output begins, or the rows of a tuned prompt. One that a
        model is told of in its prompt stays."""
        if self.family.prompt_tasks is not None:
            return check_task(fields)
        if self.tokenizer is not None and self.tokenizer.tasks is not None:
            return with_beginning(fields, self.tokenizer.tasks, self.tokenizer, self.max_seq_len)
        if (use := self.images.question_use) is not None:
            fields = with_question(fields, use)
        elif "question" in fields:
            raise InputError(f"{self.family.name} has no task that takes a question; leave it out, or ask in a prompt.")
        if "task" not in fields:
            return fields
        if "prompt_table" in fields:
            raise InputError("task, prompt_table were given together; an input has one of them.")
        rest = {key: value for key, value in fields.items() if key != "task"}
        tuned = self.tuned_prompt(fields["task"])
        return rest if tuned is None else {**rest, "prompt_table": tuned}

    def tuned_prompt(self, task: str | int) -> TunedPrompt | None:
        """Returns what was tuned for a task of this name or number; None for -1. Raises InputError for an unknown
        one."""
        if task == -1:
            return None
        if self.prompt_tables is None:
            raise InputError(
                f"{self.family.name} has no tasks of its own, and no tuned prompts are loaded; load the model with"
                " prompt_table (--prompt-table)."
            )
        if (tuned := self.prompt_tables.find(task)) is None:
            raise InputError(f"there is no task {task!r}; there are {self.prompt_tables.known}, and -1: none.")
        return tuned

    def _with_named_ids(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Names `input_ids`: the encoder's, or the prompt of a decoder alone; a prompt table's rows go before them."""
        if "input_ids" not in fields:
            return fields
        if not self.has_encoder and self.config.cross_attention:
            raise InputError(f"{self.family.name} takes images, not token ids.")
        name = "encoder_input_ids" if self.has_encoder else "decoder_prompt_token_ids"
        others = ("text", name, *(() if self.prompts is None else ("prompt", "raw_prompt", "messages")))
        if both := [key for key in others if key in fields]:
            raise InputError(f"input_ids, {listed(both)} were given together; an input has one of them.")
        ids = [int(token) for token in fields["input_ids"]]
        vocab_size = self.source_vocab_size or self.config.vocab_size
        if not ids:
            raise InputError("the input_ids are empty; give at least one token.")
        if bad := [token for token in ids if not 0 <= token < vocab_size]:
            raise InputError(f"token id {bad[0]} is outside the vocabulary of {vocab_size}; give ids of this model.")
        rest = {key: value for key, value in fields.items() if key != "input_ids"}
        return {**rest, name: [*rows_of(prompt_table_of(fields), vocab_size), *ids]}

    def _source_ids(self, fields: dict[str, Any]) -> list[int]:
        """Returns the encoder's tokens of a text, after the rows of its prompt table."""
        text, limit = fields["text"], self.max_encoder_len
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                "the text is empty; give at least one word." if isinstance(text, str) else "text must be a string."
            )
        if self.tokenizer is None:
            raise no_tokenizer()
        rows = rows_of(prompt_table_of(fields), self.source_vocab_size or self.config.vocab_size)
        cut_at = truncation_of(fields, max(0, limit - len(rows)))
        text = self._bounded(text) if cut_at is None else self.tokenizer.shortened(text, cut_at)
        options = {"language": fields.get("src_lang"), "target": fields.get("tgt_lang"), "suffix": self._suffix(fields)}
        ids = [*rows, *self.tokenizer.encode_source(text, limit=cut_at, **options)]
        if len(ids) > limit:
            raise LengthError(
                f"the text has {len(ids)} tokens, the engine was built for {limit}; shorten it",
                f"cut it with --truncate (truncate=True), or give --max-encoder-input-len {len(ids)}",
            )
        return ids

    def _towards(self, language: str, params: SamplingParams) -> SamplingParams:
        """Returns the settings with the target's token as the first one of the output, where the model does not start
        from it."""
        languages = self.tokenizer.languages if self.tokenizer else None
        if languages is None:
            raise InputError("this model takes no language codes; name the languages in the text, as it was trained.")
        token = languages.first_token(language)
        return params if token is None else replace(params, forced_bos_token_id=token)

    def _decoder_prompt(self, fields: dict[str, Any]) -> tuple[int, ...]:
        ids, prompt = fields.get("decoder_prompt_token_ids"), fields.get("prompt")
        if ids is not None:
            return tuple(ids)
        start = self.generation.get("decoder_start_token_id")
        start = (self.config.decoder_start_token_id if start is None else start,)
        languages = self.tokenizer.languages if self.tokenizer else None
        if (target := fields.get("tgt_lang")) is not None and languages is not None and languages.starts_output:
            start = (languages.id(target),)
        if not prompt:
            return start
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer; give decoder_prompt_token_ids instead of a prompt.")
        self.tokenizer.check_length(prompt, self.max_seq_len)
        return (*start, *self.tokenizer.encode(prompt))
