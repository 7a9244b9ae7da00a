"""The command line's entry point; each noun has a module, imported on its first use.

`casfs.cli` is above both branches. It alone reads the environment, prints, and maps
errors to exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 conflict or refused, 5 no
daemon, 7 suspended, 130 interrupted. An error is one line on stderr.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from casfs.cli.lazy_group import INCOMPLETE, LazyGroup
from casfs.cli.terminal import color_option
from casfs.errors import CasfsError
from casfs.system import safe_text
from casfs.version import VERSION

EXIT_SIGNAL_BASE = 128  # plus the signal's number, as in shells
COMPLETION = "_CASFS_COMPLETE"  # set by a shell that asks for completions
FIRST_COLUMN = 12  # of the list of commands

# verb or noun: (module, help). The helps are repeated here, so that `casfs --help` imports no
# command.
COMMANDS = {
    "init": ("init", "make a store, or join a shared one"),
    "demo": ("demo", "run a workflow on a sample project and look at it"),
    "put": ("blob", "store a file's bytes"),
    "get": ("blob", "print a blob's bytes"),
    "cat": ("blob", "print a file of a tree"),
    "ls": ("ls", "list a directory of a tree"),
    "diff": ("diff", "compare trees and directories"),
    "blame": ("history", "print each line of a file with the step that wrote it"),
    "log": ("history", "list the steps and checkpoints that changed a path"),
    "bisect": ("bisect", "find the first checkpoint or step after which a command fails"),
    "has": ("blob", "check for blobs"),
    "missing": ("blob", "list hashes from stdin that are not stored"),
    "refs": ("blob", "list references of a node"),
    "walk": ("blob", "list everything reachable from a hash"),
    "heads": ("blob", "list refs and their hashes"),
    "list": ("node", "list the nodes of a type"),
    "search": ("search", "full-text search over nodes"),
    "stats": ("status", "print how much is stored"),
    "fsck": ("fsck", "check integrity, and repair"),
    "doctor": ("doctor", "tell which mounts and worktrees are stale, and what mends them"),
    "gc": ("gc", "delete unreachable blobs"),
    "purge": ("purge", "delete a content or a text for good"),
    "grep": ("grep", "find a text in all that is stored"),
    "pack": ("pack", "compress what nothing has used lately"),
    "undo": ("undo", "take back what was written into a directory, or removed"),
    "redo": ("undo", "do once more what `undo` has taken back"),
    "export": ("archive", "write threads, checkpoints and more to one file"),
    "import": ("archive", "import an exported file"),
    "remote": ("remote", "stores at another place: S3, or a directory"),
    "push": ("push_pull", "send checkpoints, threads and more to a remote"),
    "pull": ("push_pull", "bring what a remote has"),
    "clone": ("push_pull", "make a store of all that a remote has"),
    "schema": ("schema", "the types of nodes"),
    "node": ("node", "typed JSON nodes"),
    "tree": ("tree", "directories as Merkle trees"),
    "checkpoint": ("checkpoint.commands", "record and restore directories"),
    "watch": ("watch", "record a directory whenever it has come to rest"),
    "attach": ("attach", "record what an agent outside casfs does, from now on"),
    "detach": ("attach", "record it no longer"),
    "sessions": ("sessions", "what agents outside casfs have done"),
    "projects": ("projects", "repositories in which agents have worked"),
    "rewind": ("rewind", "take back what an attached agent did, and keep your own changes"),
    "review": ("review", "comment on what an agent has changed, and the agent hears it"),
    "mark": ("mark", "give the next checkpoint of a watched directory a message"),
    "action": ("action", "cached commands: run, or replay the result"),
    "plugin": ("plugin", "dependency trees of a name and version, stored once"),
    "workspace": ("workspace.commands", "a tree as a writable directory"),
    "worktree": ("worktree.commands", "a project as another directory, with a branch of its own"),
    "workflow": ("workflow.commands", "roles and the rules that route between them"),
    "agent": ("agent", "installed agents, which play roles"),
    "run": ("run", "run a workflow or an agent, watch it, apply its changes"),
    "thread": ("thread.commands", "threads: runs of workflows"),
    "mount": ("mount", "show the store as files"),
    "umount": ("mount", "end a mount"),
    "daemon": ("daemon", "run threads in the background"),
    "web": ("web", "the live dashboard in a browser"),
    "mcp": ("mcp", "serve the store to agents by the Model Context Protocol"),
    "status": ("status", "the store; or what has changed in a directory"),
    "config": ("config", "the settings and their origins"),
    "help": ("help", "the help of a command"),
}
SECTIONS = {
    "Daily": "init status checkpoint undo redo diff blame log bisect ls cat search workspace"
    " worktree mount umount",
    "Threads (runs of workflows)": "run thread workflow agent daemon web mcp demo",
    "Any agent": "attach review rewind sessions projects detach watch mark",
    "Remotes": "remote push pull clone",
    "Caches": "action plugin",
    "Store": "gc purge grep pack fsck doctor export import stats config help",
    "Plumbing": "put get has missing refs walk heads list node schema tree",
}
OTHERS = "Others"  # commands in no section
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
Resolved = tuple[str | None, click.Command | None, list[str]]


class TopGroup(LazyGroup):
    """The group of all commands, listed in sections."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Resolved:
        try:
            return super().resolve_command(ctx, args)
        # click suggests only commands that are imported, of which there are none yet.
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=COMMANDS, ctx=ctx
            ) from None

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError:  # of --help and --version, which print before `invoke`
            raise click.exceptions.Exit(_discard_stdout()) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
        except BrokenPipeError:  # click would make it exit code 1
            return _discard_stdout()
        # A command that printed an error for a part of its work and went on has failed, too.
        is_incomplete = ctx.meta.get(INCOMPLETE, False)
        return result or int(is_incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {title: names.split() for title, names in SECTIONS.items()}
        grouped = {name for names in sections.values() for name in names}
        sections[OTHERS] = [name for name in COMMANDS if name not in grouped]
        for title, names in sections.items():
            if rows := [(name, COMMANDS[name][1]) for name in names if name in COMMANDS]:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=FIRST_COLUMN)


def _module(name: str) -> str:
    is_of_python = name in ("list", "import", "help")
    attribute = f"{name}_" if is_of_python else name
    return f"{COMMANDS[name][0]}:{attribute}"


MODULES = {name: _module(name) for name in COMMANDS}


@click.group(cls=TopGroup, modules=MODULES, context_settings=CONTEXT_SETTINGS)
@click.version_option(VERSION, prog_name="casfs")
@click.option("--store", metavar="DIR", help="The store (default: CASFS_STORE, then the user's).")
@color_option
@click.pass_context
def cli(ctx: click.Context, store: str | None) -> None:
    """Everything an agent team produces, content-addressed and shown as files.

    \b
    casfs init                                     make a store
    casfs checkpoint create work DIR -m "before"   record a directory
    casfs mount ./mnt                              look at it with ls, cat, grep, diff, cp

    `casfs help COMMAND` explains a command.
    """
    ctx.obj = store


def main() -> NoReturn:
    _fill_closed_streams()
    # Before click sees it: its own completion imports every command (`casfs.cli.completion.shell`).
    if instruction := os.environ.get(COMPLETION):
        from casfs.cli.completion import shell

        sys.exit(shell.main(cli, instruction))
    code = _run()
    # What could not be written is still in the buffer. Python flushes it once more at exit: that
    # would print a second error, and change the exit code.
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    sys.exit(code)


def _run() -> int:
    """Runs the command; prints its error and returns its exit code."""
    try:
        # Not standalone: click would print errors in its own form, and exit with its own codes.
        with _ended_by_signals():
            result = cli.main(prog_name="casfs", standalone_mode=False)
        # Here, and not by Python at exit, which would print a traceback of a closed pipe or a full
        # disk.
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except CasfsError as error:
        return _fail(str(error), error.exit_code)
    # A group without a command: a usage error, too, whose message is the help and not one line.
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "casfs"
        message = error.format_message()
        stop = "" if message.endswith((".", "?", "!")) else "."
        return _fail(f"{message}{stop} See `{command} --help`.", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 1)
    except (KeyboardInterrupt, click.Abort):
        return 130
    # Of the flush; before OSError, of which it is one.
    except BrokenPipeError:
        return _discard_stdout()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = ""
        if error.errno == errno.EROFS:
            from casfs.system import sandbox

            hint = sandbox.hint()
        return _fail(f"{where}{error.strerror or error}{hint}", 1)


def _fill_closed_streams() -> None:
    """Opens /dev/null for each standard stream that was closed. The next file that is opened, a
    database as well, would have its number, and what is printed would go there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # `number`, as the lowest that is free
            os.set_inheritable(null, True)  # also of programs that are started from here
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115  # stays open
            setattr(sys, name, stream)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGHUP, of a terminal that was closed, and SIGTERM clean up as an interrupt does."""

    def end(number: int, frame: object) -> NoReturn:
        sys.exit(EXIT_SIGNAL_BASE + number)

    before = {signum: signal.getsignal(signum) for signum in (signal.SIGHUP, signal.SIGTERM)}
    for signal_number, handler in before.items():
        if handler is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(signal_number, end)
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def _discard_stdout() -> int:
    """Sends the rest of stdout to /dev/null. Returns 0, the exit code where its reader has closed
    it, which is not an error."""
    # Python flushes stdout once more at exit, and would fail again.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return 0


def _fail(message: str, code: int) -> int:
    # A message may hold names of files, which could hold control sequences of a terminal.
    text = " ".join(message.split("\n"))
    line = safe_text.escape(text, one_line=True)
    click.echo(f"casfs: {line}", err=True)
    return code
