"""The commands as data: which there are, their options, and what each argument takes.

Importing every command takes long, so the tree is made once and cached in the user's cache
directory, under a key of the program's version and the times of its modules.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from casfs.digest import hash_bytes
from casfs.system import cache_directory
from casfs.version import VERSION

Tree = dict[str, Any]  # {commands} of a group; {options, arguments} of a command

FLAG = "flag"
TEXT = "text"
FILE = "file"
DIRECTORY = "directory"
CHOICE = "choice:"
REVISION = "revision"
REVISION_OR_DIRECTORY = "revision|directory"
THREAD = "thread"
HASH = "hash"
NAME = "name"
WORKFLOW = "workflow"
AGENT = "agent"
ROLE = "role"
ROLE_AGENT = "role=agent"
TYPE = "type"
PLUGIN = "plugin"
VERSION_OF_PLUGIN = "version"
COMMAND = "command"
PLAYER = "player"

# parameter: what it takes, in any command
KINDS = {
    **dict.fromkeys(("tree", "base", "against", "checkpoint", "what", "roots", "revs"), REVISION),
    **dict.fromkeys(("directory", "source"), DIRECTORY),
    **dict.fromkeys(("file", "files", "paths", "output", "have", "steps_file"), FILE),
    **dict.fromkeys(("hash", "hashes", "why", "purge"), HASH),
    **dict.fromkeys(("id", "ids", "thread", "session"), THREAD),
    "sides": REVISION_OR_DIRECTORY,
    "workspace": REVISION_OR_DIRECTORY,
    "workflow": WORKFLOW,
    "target": PLAYER,
    "agents": ROLE_AGENT,
    "compact_by": AGENT,
    "type": TYPE,
    "version": VERSION_OF_PLUGIN,
    "role": ROLE,
}
# the parameter `name` of the commands of a noun
NAMES = {"checkpoint": NAME, "workflow": WORKFLOW, "agent": AGENT, "plugin": PLUGIN}
OTHERS = {  # command and parameter, where the rules above do not hold
    "agent test workspace": DIRECTORY,
    **dict.fromkeys(("attach project", "attach pause", "attach resume"), DIRECTORY),
    "detach project": DIRECTORY,
    **dict.fromkeys(("bisect id", "bisect good", "bisect bad"), REVISION),
    "help words": COMMAND,
    "schema show words": TYPE,
    "search path": REVISION,
    "search type": TYPE,
}


def load(cli: click.Command) -> Tree:
    """Returns the tree of a program, from the cache where it is up to date."""
    name = _cache_name()
    with suppress(ValueError):
        cached: Tree = json.loads(cache_directory.read(name) or b"")
        return cached
    tree = build(cli)
    cache_directory.write(name, json.dumps(tree).encode())
    return tree


def _cache_name() -> str:
    source = Path(__file__).parent.parent
    times = [str(path.stat().st_mtime_ns) for path in sorted(source.rglob("*.py"))]
    key = hash_bytes("\n".join([VERSION, str(source), *times]).encode())[:16]
    return f"completion-{key}.json"


def build(command: click.Command, path: str = "") -> Tree:
    """Returns the tree of a command; `path`: the words of the group that it is in."""
    options: Tree = {}
    arguments = []
    for parameter in command.params:
        kind = kind_of(parameter, path)
        if isinstance(parameter, click.Option):
            options |= dict.fromkeys([*parameter.opts, *parameter.secondary_opts], kind)
        else:
            arguments.append([kind, parameter.nargs])
    tree: Tree = {"options": {**options, "--help": FLAG}, "arguments": arguments}
    if isinstance(command, click.Group):
        context = click.Context(command)
        inner = {
            name: command.get_command(context, name) for name in command.list_commands(context)
        }
        tree["commands"] = {
            name: build(subcommand, f"{path}{name} ")
            for name, subcommand in inner.items()
            if subcommand is not None
        }
    return tree


def kind_of(parameter: click.Parameter, path: str) -> str:
    """Returns what a parameter takes; `path`: the words of its command, each with a space."""
    if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
        return FLAG
    if isinstance(parameter.type, click.Choice):
        return CHOICE + ",".join(map(str, parameter.type.choices))
    name = parameter.name or ""
    if name == "name" and isinstance(parameter, click.Argument):
        return NAMES.get(path.partition(" ")[0], TEXT)
    return OTHERS.get(path + name) or KINDS.get(name, TEXT)
