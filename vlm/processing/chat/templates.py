"""Chat templates of model folders, rendered where they can reach nothing and ask for little at once.

What a step asks for, the numbers of the loops and the length of the text are bounded. Time is not: a template may
repeat small steps, and may double a text of its own.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, ClassVar

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vlm.errors import EngineError, InputError, first_line

MAX_NUMBER = 100_000  # that a function or filter is given, as jinja's sandbox has it for ranges
MAX_LOOPS = 1_000_000  # numbers of all ranges of a rendering
MAX_REPEATED = 2**20  # characters or items that a multiplication makes
MAX_RENDERED = 2**26  # characters
WIDTH = re.compile(r"\d{6}|\{[^{}]*:[^{}]*\{|%[-+ #0]*\*")  # a large one in a format, or one that is given
# what a template of any origin may run into
ERRORS = (
    TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
)  # fmt: skip


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Returns the text. InputError for a conversation that the template does not take; EngineError for a template that
    is damaged."""
    jinja_template = _compiled(template)
    try:
        return "".join(_bounded(jinja_template.generate({**variables, "range": _Ranges()})))
    except ERRORS as error:
        message = str(error) or type(error).__name__
        raise InputError(f"the model's chat template does not take this conversation: {message}.") from None


@functools.lru_cache(maxsize=8)
def takes_parts(template: str) -> bool:
    """Says whether a template goes through the parts of a message's content; to any other one contents are texts,
    whatever else it reads the types of. EngineError for a template that is damaged."""
    environment = _environment()
    try:
        tree = environment.parse(template)
    except ERRORS as error:
        raise _damaged(error) from None
    names = {"content"}
    for assigned in tree.find_all(nodes.Assign):
        if isinstance(assigned.target, nodes.Name) and _is_content(assigned.node, names):
            names.add(assigned.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Says whether an expression is a message's content, filtered or sliced perhaps, or a variable of one."""
    while isinstance(node, nodes.Filter) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return (isinstance(node, nodes.Getattr) and node.attr == "content") or (
        isinstance(node, nodes.Name) and node.name in names
    )


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    room = MAX_RENDERED
    for piece in pieces:
        if (room := room - len(piece)) < 0:
            raise SecurityError(f"it writes more than {MAX_RENDERED:,} characters")
        yield piece


class _Ranges:
    """`range`, with a bound for all calls of a rendering."""

    def __init__(self) -> None:
        self._room = MAX_LOOPS

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self._room -= len(numbers)
        if self._room < 0:
            raise SecurityError(f"its loops count to more than {MAX_LOOPS:,}")
        return numbers


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(value) if isinstance(value, Sized) else abs(value) for value in (left, right)]
        if operator == "**" and (sizes[0] > MAX_NUMBER or sizes[1] > 64):
            raise SecurityError("it raises a number to too high a power")
        if operator == "*" and (isinstance(left, Sized) or isinstance(right, Sized)):
            _check(sizes[0] * sizes[1] <= MAX_REPEATED)
        if operator == "%" and isinstance(left, str):
            _check(not WIDTH.search(left))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers(*args, *kwargs.values())
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Returns the guarded `format` of a text; None for what is no `format` of a text."""
        if (function := super().wrap_str_format(value)) is not None:
            _check(not WIDTH.search(str(value.__self__)))
        return function


def _check(small: bool) -> None:
    if not small:
        raise SecurityError("it asks for a text or a list that is too long")


def _check_numbers(*values: Any) -> None:
    _check(not any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values))


def _careful(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a filter of jinja's that refuses large numbers, but for its input."""

    @functools.wraps(filter)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(*args[1:], *kwargs.values())
        if name == "format":
            _check(not WIDTH.search(str(args[0])))
        return filter(*args, **kwargs)

    return checked


class _Generation(Extension):
    """{% generation %} marks what training counts; here it is read as if it were not there."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes letters and signs as they are, in the order of their keys, as Hugging Face does: jinja's own filter writes
    for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(format: str) -> str:
    _check(not WIDTH.search(format))
    return datetime.now().strftime(format)


def _environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    del environment.globals["lipsum"]
    filters = environment.filters | {"tojson": _json}
    environment.filters = {name: _careful(name, filter) for name, filter in filters.items()}
    return environment


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    environment = _environment()
    try:
        return environment.from_string(template)
    except ERRORS as error:
        raise _damaged(error) from None


def _damaged(error: BaseException) -> EngineError:
    return EngineError(f"the model's chat template is damaged: {first_line(error)}; fetch the model again.")
