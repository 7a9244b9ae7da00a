"""Helpers that the nouns share: opening the store, reading arguments, printing."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from casfs import canonical, config
from casfs.errors import Failed, Invalid, NotFound, Refused

if TYPE_CHECKING:
    from casfs.store import Store

F = TypeVar("F", bound=Callable[..., Any])
STDIO = "-"  # stdin as an input's name, stdout as an output's
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
force_option = click.option("--force", is_flag=True, help="Also / or the home directory.")
message_option = click.option("-m", "--message", default="", help="Checkpoint message.")


# -- the store --------------------------------------------------------------------------------


def store_root(ctx: click.Context) -> Path:
    """The store's directory, from --store, the environment or the default."""
    found: Path = config.store_root(ctx.find_root().obj, os.environ).value
    return found


@contextmanager
def open_store(ctx: click.Context) -> Iterator[Store]:
    from casfs.store import Store

    with Store.open(store_root(ctx)) as store:
        yield store


def check_store(root: Path) -> None:
    """Opens and closes the store. Raises as opening it does."""
    from casfs.store import Store

    Store.open(root).close()


# -- output -----------------------------------------------------------------------------------


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


# -- input ------------------------------------------------------------------------------------


def input_name(name: str) -> str:
    """An input's name in a message."""
    return "stdin" if name == STDIO else name


def read_input(name: str) -> bytes:
    """Returns the bytes of a file, or of stdin for `-`. Raises NotFound, Failed."""
    if name == STDIO:
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no file {name}") from None
    except OSError as error:
        raise Failed(f"cannot read {name}: {error.strerror}") from None


def read_json(name: str) -> Any:
    """Parses a JSON file, or stdin for `-`. Raises Invalid with the file's name."""
    try:
        return canonical.parse(read_input(name))
    except Invalid as error:
        raise Invalid(f"{input_name(name)}: {error}") from None


def refuse_home_or_root(path: Path, force: bool) -> None:
    """Guards against recording a whole machine or a home directory with its keys by mistake. Raises
    Refused for a home directory and every directory above one, unless `force`."""
    homes = {Path.home().resolve(), Path(os.path.expanduser(f"~{_user()}")).resolve()}
    if not force and any(home.is_relative_to(path.resolve()) for home in homes):
        raise Refused(
            f"{path.resolve()}: refusing to record the root or home directory; use --force"
        )


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
