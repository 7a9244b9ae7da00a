"""Output of the commands: lines and JSON on stdout, warnings on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import click


def echo(text: str | bytes = "") -> None:
    """Prints a line on stdout; bytes (file names that are not UTF-8) are written unchanged."""
    if isinstance(text, str):
        surrogates = any("\udc80" <= character <= "\udcff" for character in text)
        text = os.fsencode(text) if surrogates else text.encode("utf-8", "replace")
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def echo_json(value: Any, *, pretty: bool = True) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2 if pretty else None)
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


def echo_result(as_json: bool, value: Any, line: str | bytes) -> None:
    """Prints a verb's result: `value` as JSON, or `line`."""
    if as_json:
        echo_json(value)
    else:
        echo(line)


def echo_lines(as_json: bool, value: Any, lines: Iterable[str | bytes]) -> None:
    """Prints a verb's result: `value` as JSON, or the lines, each as soon as it is made."""
    if as_json:
        echo_json(value)
        return
    for line in lines:
        echo(line)


def warn(text: str) -> None:
    click.echo(f"casfs: warning: {text}", err=True)
