"""The prompt: an argument, a file, or standard input."""

from __future__ import annotations

import sys

from backends.errors import BadValue
from strata_cli.grammar import whole_utf8
from strata_cli.output import wait_for

NO_PROMPT = "no prompt: give it as `strata generate PROMPT`, with -f FILE, or through a pipe; `strata generate -` reads what you type"


def read_prompt(argument: str | None, file: str | None) -> str:
    """The prompt's text. Files and standard input lose a byte order mark and one final newline. Raises BadValue."""
    if argument is not None and file is not None:
        raise BadValue("PROMPT and -f FILE are both given; leave one out")
    if file is not None and file != "-":
        text = read_file(file, f"-f: {file}", "the prompt")
    elif argument is None or argument == "-":
        if sys.stdin is None or (sys.stdin.isatty() and argument != "-" and file != "-"):
            raise BadValue(NO_PROMPT)
        text = read_stdin("the prompt")
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


def read_file(path: str, where: str, what: str) -> str:
    """A file's text, as `decode_text` gives it; where: what names the file, for messages. Raises BadValue."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise BadValue(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    return decode_text(content, where, what)


def read_stdin(what: str) -> str:
    """The text of standard input, likewise."""
    if sys.stdin is None:
        raise BadValue("standard input: it is closed")
    wait_for(sys.stdin)
    try:
        return decode_text(sys.stdin.buffer.read(), "standard input", what)
    except OSError as error:
        raise BadValue(f"standard input: {error.strerror}") from None


def decode_text(content: bytes, where: str, what: str) -> str:
    """The text of a file's bytes, without a byte order mark and one final newline. what: it is, for messages. Raises BadValue."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"{where}: not UTF-8 at byte {error.start} (0x{content[error.start]:02x}); {what} must be UTF-8 text") from None
    # `echo hello |` and editors end a text with a newline that is no part of it.
    return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
