"""What the commands share: opening the store, options, reading arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import click

from casfs import canonical, config
from casfs.errors import Failed, Invalid, NotFound

if TYPE_CHECKING:
    from casfs.agents.secrets import Secrets
    from casfs.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])
SECRETS_VARIABLE = "CASFS_SECRETS"  # of a step's program, see `casfs.agents.secrets`
MAX_INPUT_BYTES = 256 << 20
STDIO = "-"  # stdin as an input's name, stdout as an output's
force_option = click.option("--force", is_flag=True, help="Also / or the home directory.")
with_local_option = click.option(
    "--with-local", is_flag=True, help="Private and derived files, too, where they were recorded."
)
message_option = click.option("-m", "--message", default="", help="Checkpoint message.")


def server_options(command: F) -> F:
    # The help lists last what is added first.
    command = click.option("--region", metavar="R", help="Of S3, where it is needed.")(command)
    return click.option("--endpoint", metavar="URL", help="The S3 server, if not AWS.")(command)


def options_as(kind: type[Any], parameter: str = "options") -> Callable[[F], F]:
    """Hands the options that are fields of a record on together, as one parameter. `kind`: a
    NamedTuple, or a dataclass that inherits no field."""
    names = list(kind.__annotations__)

    def decorate(verb: F) -> F:
        @wraps(verb)
        def command(*arguments: Any, **values: Any) -> Any:
            chosen = kind(**{name: values.pop(name) for name in names})
            return verb(*arguments, **{parameter: chosen}, **values)

        return cast(F, command)

    return decorate


class WithPaths(click.Command):
    """A command whose arguments after `--` are paths: the parameter `paths`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        separator = args.index("--") if "--" in args else len(args)
        ctx.params["paths"] = tuple(args[separator + 1 :])
        return super().parse_args(ctx, args[:separator])


class Count(click.IntRange):
    """A whole number that JSON and SQLite can hold."""

    def __init__(self, minimum: int) -> None:
        super().__init__(minimum)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        count = super().convert(value, param, ctx)
        # Not as the range's maximum, which the help would show.
        if count > canonical.MAX_INT:
            self.fail(f"{count} is too large", param, ctx)
        return count


# -- the store --------------------------------------------------------------------------------


def store_root() -> Path:
    """The store's directory, from --store, the environment or the default."""
    named = click.get_current_context().find_root().obj
    root: Path = config.store_root(named, os.environ).value
    return root


@contextmanager
def open_store(with_local: bool = True) -> Iterator[Store]:
    """`with_local`: what only local trees reach is there, too."""
    # Not at the top: helps, completions and errors of usage need no store.
    from casfs.store.store import Store

    with Store.open(store_root()) as store:
        yield store.shown(with_local=with_local)


def check_store(root: Path) -> None:
    """Opens and closes the store. Raises as opening it does."""
    from casfs.store.store import Store

    Store.open(root).close()


def step_secrets() -> Secrets:
    """Returns the secrets of the step whose program runs this command; none outside a step."""
    from casfs.agents.secrets import of_step

    return of_step(os.environ)


def message_for_daemon(text: str) -> str:
    """Returns a text without the values of the step whose program runs this command; the daemon,
    which does not know them, looks for all other secrets."""
    return step_secrets().redact_values(text) if os.environ.get(SECRETS_VARIABLE) else text


# -- input ------------------------------------------------------------------------------------


def input_name(name: str) -> str:
    """An input's name in a message."""
    return "stdin" if name == STDIO else name


def read_input(name: str) -> bytes:
    """Returns the bytes of a file, or of stdin for `-`. Raises NotFound, Failed, Invalid."""
    if name == STDIO:
        return _bounded(sys.stdin.buffer, name)
    try:
        with Path(name).open("rb") as file:
            return _bounded(file, name)
    # NotFound has an exit code of its own.
    except FileNotFoundError:
        raise NotFound(f"no file {name}") from None
    except OSError as error:
        raise Failed(f"cannot read {name}: {error.strerror}") from None


def _bounded(file: BinaryIO, name: str) -> bytes:
    # A device or a pipe may have no end.
    data = file.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise Invalid(f"{input_name(name)} has more than {MAX_INPUT_BYTES >> 20} MiB")
    return data


def read_json(name: str) -> Any:
    """Parses a JSON file, or stdin for `-`. Raises Invalid with the file's name."""
    try:
        return canonical.parse(read_input(name))
    except Invalid as error:
        raise Invalid(f"{input_name(name)}: {error}") from None
