"""The command line: one file per noun, imported when it is needed.

The only place above both branches, and the only one that reads the environment, prints,
and turns errors into exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 conflict or
refused, 5 no daemon, 7 suspended. An error is one line on stderr.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from casfs import __version__
from casfs.errors import CasfsError

YOUNG = 100_000  # objects between two looks for cycles: a command makes many, and none of them

# verb or noun → (module, what it is for)
COMMANDS = {
    "init": ("blob", "make a store"),
    "put": ("blob", "store a file's bytes"),
    "get": ("blob", "print a blob's bytes"),
    "has": ("blob", "say whether blobs are stored"),
    "missing": ("blob", "which of the hashes on stdin are not stored"),
    "refs": ("blob", "what a node refers to"),
    "walk": ("blob", "everything reachable from a hash"),
    "heads": ("blob", "the mutable names"),
    "list": ("maintenance", "the nodes of a type"),
    "search": ("maintenance", "find words in what nodes say"),
    "stats": ("maintenance", "how much is stored"),
    "fsck": ("maintenance", "check everything, and repair"),
    "gc": ("maintenance", "delete what nothing reaches"),
    "export": ("maintenance", "write threads, checkpoints and more as one file"),
    "import": ("maintenance", "bring in an exported file"),
    "schema": ("schema", "the types of nodes"),
    "node": ("node", "typed JSON nodes"),
    "tree": ("tree", "directories as Merkle trees"),
    "checkpoint": ("checkpoint", "record and restore workspaces"),
    "action": ("action", "run commands, or replay what they left behind"),
    "plugin": ("plugin", "trees of a name and version, stored once"),
    "workspace": ("workspace", "a tree as a writable directory"),
    "workflow": ("workflow", "roles and the rules that route between them"),
    "agent": ("agent", "what can play a role"),
    "thread": ("thread.commands", "runs of workflows"),
    "mount": ("process", "show the store as files"),
    "umount": ("process", "end a mount"),
    "daemon": ("process", "run threads in the background"),
    "status": ("process", "the store, its daemon and its mounts"),
    "config": ("process", "the settings and where each is from"),
}


class Lazy(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"casfs.cli.{COMMANDS[name][0]}")
        command = getattr(module, name + "_" * (name in ("list", "import")))
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would make it exit code 1
            return _hush()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="casfs")
@click.option("--store", metavar="DIR", help="The store (else CASFS_STORE, else the user's).")
@click.pass_context
def cli(ctx: click.Context, store: str | None) -> None:
    """Everything an agent team produces, content-addressed and shown as files.

    \b
    casfs init                                     make a store
    casfs checkpoint create work DIR -m "before"   record a directory
    casfs mount ./mnt                              look at it with ls, cat, grep, diff, cp
    """
    ctx.obj = store


def main() -> NoReturn:
    """Run the command line and exit."""
    gc.set_threshold(YOUNG)
    try:
        result = cli.main(prog_name="casfs", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except CasfsError as error:
        code = _complain(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "casfs"
        code = _complain(f"{error.format_message()} See `{command} --help`.", 2)
    except click.ClickException as error:
        code = _complain(error.format_message(), 1)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:
        code = _hush()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _complain(f"{where}{error.strerror or error}", 1)
    sys.exit(code)


def _hush() -> int:
    """The reader of stdout has had enough: what is left goes nowhere, and that is no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _complain(message: str, code: int) -> int:
    click.echo("casfs: " + " ".join(message.split("\n")), err=True)
    return code
