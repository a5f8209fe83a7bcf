"""The prompt: an argument, a file, or standard input."""

from __future__ import annotations

import sys

from backends.errors import BadValue
from strata_cli.grammar import whole_utf8
from strata_cli.output import wait_for


def read_prompt(argument: str | None, file: str | None) -> str:
    """The prompt's text. Files and standard input lose a byte order mark and one final newline. Raises BadValue."""
    if argument is not None and file is not None:
        raise BadValue("PROMPT and -f FILE are both given; leave one out")
    if file is not None and file != "-":
        text = decode_text(_read_file(file), file)
    elif argument is None or argument == "-":
        text = _read_stdin(asked=argument == "-" or file == "-")
    else:
        text = check_utf8("PROMPT", argument)
    if not text.strip():
        raise BadValue("the prompt is empty")
    return text


def check_utf8(name: str, text: str) -> str:
    """A text argument itself. Raises BadValue if the bytes it came from are not UTF-8."""
    try:
        return whole_utf8(text)
    except ValueError as reason:
        raise BadValue(f"{name}: {reason}") from None


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadValue(f"-f: {path}: {error.strerror}") from None


def _read_stdin(asked: bool) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not asked):
        raise BadValue("no prompt: give it as `strata generate PROMPT`, with -f FILE, or through a pipe; `strata generate -` reads what you type")
    wait_for(sys.stdin)
    try:
        return decode_text(sys.stdin.buffer.read(), "standard input")
    except OSError as error:
        raise BadValue(f"standard input: {error.strerror}") from None


def decode_text(content: bytes, name: str, what: str = "the prompt") -> str:
    """The text of a file's bytes, without a byte order mark and one final newline. what: it is, for messages. Raises BadValue."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"{name}: not UTF-8 at byte {error.start} (0x{content[error.start]:02x}); {what} must be UTF-8 text") from None
    # `echo hello |` and editors end a text with a newline that is no part of it.
    return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
