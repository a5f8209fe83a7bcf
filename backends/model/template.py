"""Chat templates: the Jinja program in a GGUF file that turns messages into one prompt.

A template is untrusted code, so it runs in Jinja's immutable sandbox: no Python internals, no files, nothing of the caller's
is changed. Bounded here: range() (100,000 items, by Jinja), the length of the result, and of what * and ** build. Not
bounded: the time of nested loops, and texts grown piece by piece or by padding filters (`center`, `format`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.errors import ModelError
from backends.model.gguf import GGUFFile
from backends.model.tokenizer import Tokenizer

MAX_PROMPT_CHARS: Final = 1 << 26
_MAX_BUILT: Final = 1 << 20  # items of a repeated text or list, and bits of a power


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on the two operators that build something huge at once."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left * right` or `left ** right`, unless the result would be too big."""
        if operator == "**":
            too_big = isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_BUILT
        else:
            items, times = (left, right) if isinstance(left, Sequence) else (right, left)
            too_big = isinstance(items, Sequence) and isinstance(times, int) and len(items) * times > _MAX_BUILT
        if too_big:
            raise OverflowError(f"the result of {operator} is too big")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A compiled chat template."""

    __slots__ = ("_name", "_template", "source")

    def __init__(self, source: str, bos_text: str = "", eos_text: str = "", name: str = "model") -> None:
        """Compile `source`; it sees the texts as bos_token and eos_token. name: what errors are about, such as a path.

        Raises ModelError for a template that is not valid Jinja.
        """
        self.source: Final = source
        self._name = name
        env = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        env.globals.pop("lipsum")
        env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, bos_token=bos_text, eos_token=eos_text)
        env.filters["tojson"] = _tojson
        try:
            self._template = env.from_string(source)
        except Exception as error:  # Python's own compiler has limits too (nesting); whatever it is, the template is at fault
            raise ModelError(f"{name}: the chat template is not valid: {_one_line(error)}") from None

    @classmethod
    def from_gguf(cls, file: GGUFFile, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of an opened model; None where it has none, then prompts are taken as they are."""
        source = file.get("tokenizer.chat_template", str, None)
        return None if source is None else cls(source, tokenizer.bos_text, tokenizer.eos_text, file.path)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt for `messages` (each with role and content).

        add_generation_prompt: end with the opening of the assistant's turn. variables: more for the template, such as
        enable_thinking or tools. Raises ModelError where the template fails or refuses the messages.
        """
        pieces, length = [], 0
        try:
            for piece in self._template.generate({**variables, "messages": messages, "add_generation_prompt": add_generation_prompt}):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_PROMPT_CHARS:
                    raise OverflowError(f"the prompt has more than {MAX_PROMPT_CHARS} characters")
        except Exception as error:  # a template can raise nearly anything (TypeError, ZeroDivisionError, RecursionError)
            raise ModelError(f"{self._name}: the chat template failed: {_one_line(error)}") from None
        return "".join(pieces)


def _raise_exception(message: object) -> NoReturn:
    """How a template refuses messages."""
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON without Jinja's HTML escapes, as templates are written for."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no reason given"
    if not isinstance(error, TemplateError):
        text = f"{type(error).__name__}: {text}"
    if isinstance(error, TemplateSyntaxError):
        text += f" (line {error.lineno})"
    return text if len(text) <= 300 else text[:297] + "..."
