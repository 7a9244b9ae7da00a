"""What the nouns share: opening the store, reading arguments, printing."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from casfs import canonical, config
from casfs.errors import Failed, Invalid, NotFound, Refused

if TYPE_CHECKING:
    from casfs.store import Store

F = TypeVar("F", bound=Callable[..., Any])
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def root(ctx: click.Context) -> Path:
    """Where the store is, as the flag and the environment say."""
    found: Path = config.store_root(ctx.find_root().obj, os.environ).value
    return found


@contextmanager
def opened(ctx: click.Context) -> Iterator[Store]:
    from casfs.store import Store

    with Store.open(root(ctx)) as store:
        yield store


def say(text: str | bytes = "") -> None:
    """A line on stdout; bytes (names that are no UTF-8) go out as they are."""
    if isinstance(text, str):
        text = os.fsencode(text) if _has_surrogates(text) else text.encode("utf-8", "replace")
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def warn(text: str) -> None:
    click.echo(f"casfs: warning: {text}", err=True)


def say_json(value: Any, *, pretty: bool = True) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2 if pretty else None)
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


def answer(as_json: bool, value: Any, line: str | bytes) -> None:
    """What a verb has to say, in one of its two forms."""
    if as_json:
        say_json(value)
    else:
        say(line)


def source(name: str) -> str:
    """An input's name in a message."""
    return "stdin" if name == "-" else name


def read_input(name: str) -> bytes:
    """The bytes of a file, or of stdin for `-`. Raises NotFound, Failed."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no file {name}") from None
    except OSError as error:
        raise Failed(f"cannot read {name}: {error.strerror}") from None


def read_json(name: str) -> Any:
    """Parse a JSON file, or stdin for `-`. Raises Invalid naming it."""
    try:
        return canonical.parse(read_input(name))
    except Invalid as error:
        raise Invalid(f"{source(name)}: {error}") from None


def _has_surrogates(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)


force_option = click.option("--force", is_flag=True, help="Also / or the home directory.")


def refuse_too_much(path: Path, force: bool) -> None:
    """A slip of a finger must not record a whole machine, or all of somebody's keys: no home,
    and nothing that a home is in."""
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
