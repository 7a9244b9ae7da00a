"""A group of commands whose modules are imported when they are called: most of what a command
imports, another one of the same noun does not need."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

INCOMPLETE = "casfs.incomplete"  # in the context's `meta`, where a part could not be done
NONE: Mapping[str, str] = {}


class LazyGroup(click.Group):
    """`modules`: by the name of a command, "module:attribute" in `casfs.cli`, in the order of the
    help. Commands may be added in the usual way, too; they come first."""

    def __init__(self, *arguments: Any, modules: Mapping[str, str] = NONE, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *(name for name in self._modules if name not in self.commands)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command = self.commands.get(name)
        if command is None and name in self._modules:
            module, _, attribute = self._modules[name].partition(":")
            command = getattr(import_module(f"casfs.cli.{module}"), attribute)
        if command is not None:  # click would cut the first line of the help, and not wrap it
            command.short_help = command.short_help or _first_sentence(command.help or "")
        return command


def _first_sentence(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].removesuffix(".") + "."
