"""The settings: printed, set, edited."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from casfs import config as settings
from casfs.cli.common import store_root
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_lines, echo_result, json_option
from casfs.errors import Failed, NotFound
from casfs.system.files import replacing

F = TypeVar("F", bound=Callable[..., Any])


def place_option(command: F) -> F:
    return click.option(
        "--user", is_flag=True, help="In the user's file, for all stores; not in the store's."
    )(command)


@click.group(cls=LazyGroup, invoke_without_command=True)
@json_option
@click.pass_context
def config(ctx: click.Context) -> None:
    """Print each setting, its value and its origin; `set`, `unset` and `edit` change one.

    \b
    casfs config
    casfs config set runs.limit 4
    """
    if ctx.invoked_subcommand is None:
        _print(ctx)


@config.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context) -> None:
    """Print each setting, its value and its origin.

    \b
    casfs config list
    """
    _print(ctx)


def _print(ctx: click.Context) -> None:
    root = settings.store_root(ctx.find_root().obj, os.environ)
    values = [root, *settings.load(root.value, os.environ)]
    lines = (
        f"{loaded.setting.name} = {loaded.value}  ({loaded.origin}; {loaded.setting.help})"
        for loaded in values
    )
    echo_lines([_json(value) for value in values], lines)


@config.command("set")
@click.argument("name")
@click.argument("value")
@place_option
@json_option
def set_(name: str, value: str, user: bool) -> None:
    """Set a setting in config.toml; a list is written as in TOML. Comments stay.

    \b
    casfs config set runs.limit 4
    casfs config set actions.cacheable '["make", "cargo build"]'
    """
    setting = settings.setting(name)
    _change(name, value=settings.parse(setting, value, name), user=user)


@config.command()
@click.argument("name")
@place_option
@json_option
def unset(name: str, user: bool) -> None:
    """Remove a setting from config.toml: the next origin or the default counts again.

    \b
    casfs config unset runs.limit
    """
    settings.setting(name)
    _change(name, value=None, user=user)


@config.command()
@place_option
def edit(user: bool) -> None:
    """Open config.toml in $VISUAL or $EDITOR, and check it afterwards.

    \b
    casfs config edit
    """
    path = _path(user)
    path.parent.mkdir(parents=True, exist_ok=True)
    click.edit(filename=str(path))
    settings.load(store_root(), os.environ)


def _change(name: str, value: Any, user: bool) -> None:
    from casfs.system.config_edit import with_setting

    path = _path(user)
    try:
        text = path.read_text("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"cannot read {path}: {error}") from None
    new_text = with_setting(text, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(new_text.encode())
    effective = next(
        loaded for loaded in settings.load(store_root(), os.environ) if loaded.setting.name == name
    )
    echo_result(_json(effective), f"{name} = {effective.value}  ({effective.origin})")


def _path(user: bool) -> Path:
    root = store_root()
    if not user and not root.is_dir():
        raise NotFound(f"no store at {root}; `casfs init` makes one")
    return settings.user_file(os.environ) if user else root / settings.FILE


def _json(value: settings.Value) -> dict[str, object]:
    shown = str(value.value) if isinstance(value.value, Path) else value.value
    return {"name": value.setting.name, "value": shown, "from": value.origin}
