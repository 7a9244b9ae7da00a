"""The program itself: helps, start-up, usage, pipes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import casfs
from casfs.cli.main import COMMANDS, SECTIONS
from casfs.cli.main import cli as root_command
from engine.threads import lifecycle
from tests.support.cli import UNKNOWN
from tests.support.engine import (
    Cli,
    spawn,
)

# -- help and start-up -----------------------------------------------------------------------


def commands() -> list[list[str]]:
    """Every command and subcommand, as it is typed."""
    import click

    found: list[list[str]] = []
    for name in COMMANDS:
        found.append([name])
        command = root_command.get_command(click.Context(root_command), name)
        if isinstance(command, click.Group):
            found += [[name, verb] for verb in command.list_commands(click.Context(command))]
    return found


DUE = """
    init put get has missing refs walk heads status config
    schema-add schema-list schema-show node-put node-get
    tree-build tree-ls tree-diff tree-restore
    checkpoint-create checkpoint-list checkpoint-restore
    workflow-add workflow-validate workflow-list workflow-show workflow-next
    agent-list agent-describe
    thread-start thread-list thread-show thread-log thread-resume thread-cancel
    mount umount daemon
""".split()


def test_every_verb_that_is_due_is_there() -> None:
    assert set(DUE) <= {"-".join(path) for path in commands()}


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help(path: list[str], bare: Cli) -> None:
    answer = bare(*path, "--help")
    assert answer.text.startswith(f"Usage: casfs {' '.join(path)} ")
    assert answer.err == ""


def test_the_first_help_names_every_command(bare: Cli) -> None:
    text = bare("--help").text
    assert bare("-h").text == text
    for name, (_, purpose) in COMMANDS.items():
        assert f"  {name} " in text
        assert purpose in text
    assert bare("--version").text == f"casfs, version {casfs.__version__}\n"


def test_every_command_stands_in_one_section() -> None:
    grouped = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(grouped) == sorted(COMMANDS)


def test_the_helps_of_verbs_are_not_cut(bare: Cli) -> None:
    for name in COMMANDS:
        assert "...\n" not in bare(name, "--help").text.partition("Commands:")[2]


def test_help_is_a_command(bare: Cli) -> None:
    assert bare("help").text == bare("--help").text
    assert bare("help", "checkpoint", "list").text == bare("checkpoint", "list", "--help").text
    assert "Did you mean 'checkpoint'?" in bare("help", "checkpint", code=2).err
    assert "casfs put has no commands" in bare("help", "put", "x", code=2).err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["checkpiont", "list"], "checkpoint"), (["stauts"], "status"), (["tree", "lss"], "ls")],
)
def test_a_command_that_does_not_exist_has_a_suggestion(
    cli: Cli, typed: list[str], meant: str
) -> None:
    assert f"'{meant}'" in cli.refused(*typed, code=2)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=str)
def test_a_closed_terminal_leaves_no_half_file(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "large").write_bytes(os.urandom(1 << 20) * 400)
    hash = cli("put", tmp_path / "large").word
    target = tmp_path / "out"
    target.mkdir()
    argv = [sys.executable, "-m", "casfs", "--store", cli.root, "export", hash]
    running = subprocess.Popen([*map(str, argv), "-o", str(target / "x.tar")])
    while not list(target.iterdir()) and running.poll() is None:
        time.sleep(0.001)
    running.send_signal(number)
    assert running.wait(30) == 128 + number
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("path", [[], ["tree"]], ids=" ".join)
def test_without_a_verb_the_help_is_shown_as_it_is_meant_to_look(path: list[str], cli: Cli) -> None:
    answer = cli(*path, code=2)
    assert answer.err == cli(*path, "--help").text
    assert answer.out == b""


def test_help_loads_no_library_that_it_does_not_need() -> None:
    code = (
        "import sys\nsys.argv = ['casfs', '--help']\n"
        "from casfs.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = "trio pyfuse3 jsonata jsonschema jsonschema_rs sqlite3 orjson yaml engine ulid".split()
    assert not set(heavy) & set(done.stderr.split())
    assert "click" in done.stderr.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["tree", "grow"],
        ["get"],
        ["put", "a", "b"],
        ["get", "--nope", "x"],
        ["gc", "--max-size", "5X"],
    ],
    ids=" ".join,
)
def test_usage(arguments: list[str], cli: Cli) -> None:
    answer = cli(*arguments, code=2)
    assert answer.err.startswith("casfs: ")
    assert re.search(r"[.?] See `casfs.* --help`\.$", answer.err)
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("verb", ["status", "checkpoint list", "heads --json", "--help", "put -"])
def test_closed_streams_are_no_error(cli: Cli, streams: str, verb: str, tmp_path: Path) -> None:
    script = f"{sys.executable} -m casfs --store {cli.root} {verb} {streams} </dev/null"
    if "<&-" in streams:
        script = script.removesuffix(" </dev/null")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert cli("fsck").text


def test_a_reader_that_has_had_enough_is_no_error(cli: Cli) -> None:
    script = '"$0" -m casfs --store "$1" heads | head -n 1; echo "${PIPESTATUS[*]}"'
    argv = ["bash", "-c", script, sys.executable, str(cli.root)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 0"
    assert done.stderr == ""


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_nor_is_one_that_has_closed_before_the_help(option: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "casfs", option]
    done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_full_disk_is_one_error(option: str) -> None:
    # Unbuffered, Python has nothing left to write at its exit.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv = [sys.executable, "-m", "casfs", option]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert (done.returncode, done.stderr) == (1, "casfs: No space left on device\n")


# -- bad input -------------------------------------------------------------------------------


def test_journal_and_cli_agree_on_max_rounds(cli: Cli) -> None:
    assert f"[default: {lifecycle.MAX_STEPS};" in cli("thread", "start", "--help").text


def test_it_is_one_program(cli: Cli) -> None:
    done = spawn("--store", cli.root, "get", UNKNOWN)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"casfs: no blob {UNKNOWN} in this store\n"
    script = Path(sys.executable).with_name("casfs")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"casfs, version {casfs.__version__}\n"
