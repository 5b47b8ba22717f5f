"""What a model that reads an image may be told to do with it: its tasks, and where an output begins for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlm.errors import InputError, listed
from vlm.requests.answer_form import AnswerForm

QUESTION = "{question}"


@dataclass(frozen=True)
class TaskPrompts:
    """Where outputs begin."""

    prompts: Mapping[str, str]  # task -> its prompt, in which {question} stands for a question
    default: str | None = None  # the task of inputs that name none

    def prompt(self, task: Any, question: Any) -> str | None:
        """Returns where the output begins; None where nothing is asked for, and no task is the usual one. InputError
        for a task that is unknown, and for a question too many or too few."""
        name = self.default if task is None else task
        if name is None and question is None:
            return None
        if not isinstance(name, str) or name not in self.prompts:
            raise self.unknown(name)
        prompt = self.prompts[name]
        if QUESTION not in prompt:
            if question is not None:
                raise InputError(f"task {name!r} takes no question; leave it out.")
            return prompt
        if not isinstance(question, str) or not question.strip():
            said = f"task {name!r} answers a question; give one beside it, as `question`."
            raise InputError(said, settings=("question",))
        return prompt.replace(QUESTION, question)

    @property
    def asking(self) -> tuple[str, ...]:
        """Returns the tasks that answer a question."""
        return tuple(name for name, prompt in self.prompts.items() if QUESTION in prompt)

    def unknown(self, name: Any) -> InputError:
        """Returns the error of a task that the model does not have; `name` None: of a question without one."""
        known = f"this model knows {listed(sorted(self.prompts), 40)}" if self.prompts else "this model has none"
        said = "a question is of a task" if name is None else f"task is {name!r}"
        return InputError(f"{said}; {known}.", settings=("question" if name is None else "task",))


@dataclass(frozen=True)
class PromptTasks(TaskPrompts):
    """Tasks that a model is told of in its prompt, which is of one image: in words, for which people write a mark,
    `<OD>`, and behind it what the task is about."""

    answer: Callable[[str, AnswerForm], str] = lambda text, form: text  # what it wrote -> what users read

    def resolve(self, prompt: str | None, task: Any, question: Any) -> tuple[str, str | None]:
        """Returns what the model reads for a prompt that marks a task, or beside which one is named, and the task; of a
        prompt without one itself and None. InputError for a task that is unknown, and for texts too many or too few."""
        marked, rest = self._parted(prompt or "")
        named = task.strip("<> ").upper() if isinstance(task, str) else task  # as the publisher writes them
        if marked is not None and named is not None:
            raise InputError(f"tasks {marked}, {named} were given together; an input has one of them.")
        if rest and question is not None:
            raise InputError("a question was given beside a prompt; an input has one of them.")
        name = self.default if (prompt, task, question) == (None, None, None) else marked or named
        if name is None and question is not None:
            raise self.unknown(None)
        if name is None:
            return prompt or "", None
        return self.prompt(name, rest or None if question is None else question) or "", name

    def _parted(self, prompt: str) -> tuple[str | None, str]:
        """Returns the task that a prompt marks, None where it marks none, and the rest of it."""
        task = next((task for task in self.prompts if f"<{task}>" in prompt), None)
        return task, prompt if task is None else prompt.replace(f"<{task}>", "").strip()
