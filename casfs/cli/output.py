"""Output of the commands: lines and JSON on stdout, warnings on stderr.

All that came from outside (names, messages, outputs) is printed here, and cannot command the
terminal: controls and bidirectional marks are escaped, in JSON by JSON's own escapes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

import click

from casfs.cli import terminal
from casfs.cli.lazy_group import INCOMPLETE
from casfs.system.safe_text import UNSAFE, escape

WANTS_JSON = "casfs.wants_json"  # in a context's meta: set by --json
COLOURED_WORD = re.compile(r"\x1b\[3[0-7]m[a-z]+ *\x1b\[0m")  # a status, see `thread.show`


def _note_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[WANTS_JSON] = value or ctx.meta.get(WANTS_JSON, False)


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_note_json, help="Print JSON."
)


def wants_json() -> bool:
    """Whether the command that runs, or a group above it, was called with --json."""
    return bool(click.get_current_context().meta.get(WANTS_JSON))


def escape_line(text: str) -> str:
    """`escape` for a line of ours, in which a status may be coloured on a terminal."""
    parts = []
    offset = 0
    for word in COLOURED_WORD.finditer(text) if terminal.colours() else ():
        parts += [escape(text[offset : word.start()], one_line=True), word[0]]
        offset = word.end()
    return "".join([*parts, escape(text[offset:], one_line=True)])


def escape_json(text: str) -> str:
    """Returns JSON with the same characters as JSON's own escapes."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: str | bytes = "") -> None:
    """Prints a text on stdout, escaped for a terminal; bytes of file names that are not UTF-8 are
    written unchanged."""
    write_line(escape(_text(text)))


def echo_part(text: str) -> None:
    """`echo` without the newline at the end."""
    sys.stdout.buffer.write(escape(text).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def echo_line(text: str | bytes) -> None:
    """`echo` for one line: newlines in names are escaped as well."""
    write_line(escape_line(_text(text)))


def echo_json(value: Any, *, pretty: bool = True) -> None:
    """Prints JSON; controls and bidirectional marks are escaped."""
    text = escape_json(json.dumps(value, ensure_ascii=False, indent=2 if pretty else None))
    _write_bytes(text.encode("utf-8", "backslashreplace"))


def echo_result(value: Any, line: str | bytes) -> None:
    """Prints a verb's result: `value` as JSON, or `line`."""
    if wants_json():
        echo_json(value)
    else:
        echo(line)


def echo_lines(value: Any, lines: Iterable[str | bytes]) -> None:
    """Prints a verb's result: `value` as JSON, or the lines, each as soon as it is made."""
    if wants_json():
        echo_json(value)
        return
    for line in lines:
        echo_line(line)


def warn(text: str) -> None:
    click.echo(f"casfs: warning: {escape(text, one_line=True)}", err=True)


def say_incomplete(text: str) -> None:
    """Says that a part could not be done, while the rest goes on; the command's exit code is 1."""
    warn(text)
    click.get_current_context().meta[INCOMPLETE] = True


def _text(text: str | bytes) -> str:
    return os.fsdecode(text) if isinstance(text, bytes) else text


def write_line(text: str) -> None:
    """Prints a line that is safe for a terminal already."""
    surrogates = any("\udc80" <= character <= "\udcff" for character in text)
    _write_bytes(os.fsencode(text) if surrogates else text.encode("utf-8", "replace"))


def _write_bytes(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
