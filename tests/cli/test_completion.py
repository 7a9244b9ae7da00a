"""Completion, as each shell asks for it: commands, options, and values from the store."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from casfs.cli.completion import command_tree, shell
from casfs.cli.main import cli as program
from tests.cli.test_docs import ALL
from tests.support.engine import Cli
from tests.support.helpers import write_tree
from tests.support.programs import needs
from tests.support.thread_example import make_thread

THREAD = "01JD00000087654ABCDEFGHJKM"


@pytest.fixture
def filled(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with two checkpoints `work` and one `web`, a thread `mend` and the workflow demo."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CASFS_STORE", str(cli.root))
    source = write_tree(tmp_path / "source", {"f": b"1"})
    for name in ("work", "work", "web"):
        cli("checkpoint", "create", name, source)
    from casfs.store.store import Store

    with Store.open(cli.root) as store:
        make_thread(store, THREAD, name="mend")
    return cli


@pytest.fixture(scope="module")
def tree() -> command_tree.Tree:
    return command_tree.build(program)


def completed(tree: command_tree.Tree, line: str) -> list[str]:
    *words, text = line.split(" ")
    found = shell.candidates(tree, words[1:], text)
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in found]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("casfs ch", ["checkpoint"]),
        ("casfs thread ap", ["apply"]),
        ("casfs thread apply --c", ["--check", "--commits"]),
        ("casfs workspace open work --backend c", ["copy"]),
        ("casfs workspace open --backend=c", ["--backend=copy"]),
        ("casfs checkpoint create ", ["web", "work"]),
        ("casfs checkpoint create wo", ["work"]),
        ("casfs checkpoint restore wo", ["work"]),
        ("casfs checkpoint restore work ", ["<dir>"]),
        ("casfs checkpoint restore work . -- ", ["<file>"]),
        ("casfs checkpoint create w . -m ", []),
        ("casfs diff w", ["web", "work", "<dir>"]),
        ("casfs diff web w", ["web", "work", "<dir>"]),
        ("casfs cat me", ["mend"]),
        ("casfs thread show ", ["mend", "@last", THREAD]),
        ("casfs bisect me", ["mend"]),
        ("casfs bisect mend --good web", ["web"]),
        ("casfs thread show abcd", [THREAD]),
        ("casfs thread show 01", [THREAD]),
        ("casfs workflow show de", ["demo"]),
        ("casfs workflow show demo --prompt pl", ["planner"]),
        ("casfs thread start demo --agent pl", ["planner="]),
        ("casfs thread fork mend --agent pl", ["planner="]),
        ("casfs thread start demo --agent planner=comm", ["planner=command"]),
        ("casfs agent describe hum", ["human"]),
        ("casfs list thread-st", ["thread-start", "thread-step"]),
        ("casfs help work", ["workspace", "worktree", "workflow"]),
        ("casfs import ", ["<file>"]),
        ("casfs --store /no/such diff x", ["<dir>"]),
        ("casfs no such command ", []),
    ],
)
def test_what_a_word_may_become(
    filled: Cli, tree: command_tree.Tree, line: str, found: list[str]
) -> None:
    assert sorted(completed(tree, line)) == sorted(found)


def test_ids_and_hashes(filled: Cli, tree: command_tree.Tree) -> None:
    new, old = (one["id"] for one in filled("checkpoint", "list", "work", "--json").json)
    assert completed(tree, "casfs cat work@") == [f"work@{new}", f"work@{old}"]
    assert completed(tree, f"casfs cat work@{old[-8:-2]}") == [f"work@{old}"]
    hash = filled("checkpoint", "list", "web", "--json").json[0]["hash"]
    assert completed(tree, f"casfs refs {hash[:12]}") == [hash]
    assert completed(tree, "casfs refs ") == []


def test_a_name_that_could_command_the_terminal(filled: Cli, tree: command_tree.Tree) -> None:
    text = '[agents."mine\\u001b[2J"]\n[agents."mine\\nplain,x"]\n[agents.mine]\n'
    (filled.root / "config.toml").write_text(text)
    assert completed(tree, "casfs agent test mine") == ["mine"]


def test_every_parameter_is_known() -> None:
    """A command that is added or renamed is completed, or its parameter takes any text."""
    names = {
        f"{path.removeprefix('casfs ')} {one.name}" for path, c in ALL.items() for one in c.params
    }
    assert set(command_tree.OTHERS) <= names
    assert set(command_tree.KINDS) <= {name.rpartition(" ")[2] for name in names}
    plain = {
        name.rpartition(" ")[2]
        for name, one in ((f"{p} {o.name}", o) for p, c in ALL.items() for o in c.params)
        if command_tree.kind_of(one, f"{name.removeprefix('casfs ').rpartition(' ')[0]} ") == "text"
        and type(one).__name__ == "Argument"
    }
    assert plain <= {
        "argv",
        "command",
        "comment",
        "key",
        "name",
        "path",
        "prefix",
        "removal",
        "text",
        "url",
        "value",
    }


def test_no_command_is_imported(filled: Cli) -> None:
    code = "import sys; from casfs.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "print(*sys.modules, file=sys.stderr)"
    asked = {"COMP_WORDS": "casfs thread show me", "_CASFS_COMPLETE": "bash_complete"}
    for first in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "plain,mend\n"
        assert first or not {"casfs.cli.thread.commands", "engine"} & {*done.stderr.split()}


SHOW = "casfs() { printf '<%s>' \"$@\"; }"  # the line is run, so what was completed is printed


def typed(program: list[str], setup: str, keys: str) -> str:
    """Type into an interactive shell, with a function in place of casfs; returns its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "PATH": path, "TERM": "dumb", "PS1": "$ "}
        os.execvpe(program[0], program, environment)
    screen = ""
    try:
        for text, until in ((f"{setup}; {SHOW}; echo rea''dy\n", "\nready"), (keys + "\n", "\n<")):
            os.write(terminal, text.encode())
            end = time.monotonic() + 60
            while until not in screen.replace("\r", "") and time.monotonic() < end:
                if select.select([terminal], [], [], 0.1)[0]:
                    screen += os.read(terminal, 65536).decode("utf-8", "replace")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    found = re.search("\n<([^\r\n#$]*)>", screen)
    return "" if found is None else found[1]


BASH = (["bash", "--norc", "--noprofile", "-i"], 'eval "$(_CASFS_COMPLETE=bash_source casfs)"')
ZSH = (
    ["zsh", "-f", "-i"],
    'autoload -U compinit; compinit -D; eval "$(_CASFS_COMPLETE=zsh_source casfs)"',
)
KEYS = [
    ("casfs checkpoint restore wo\t", "checkpoint><restore><work"),
    ("casfs thread show abcd\t", f"thread><show><{THREAD}"),
    ("casfs workf\tnex\tdem\t", "workflow><next><demo"),
]


@pytest.mark.parametrize(("keys", "wanted"), KEYS)
def test_in_bash(filled: Cli, keys: str, wanted: str) -> None:
    assert typed(*BASH, keys) == wanted


def test_bash_keeps_what_is_before_a_break(filled: Cli) -> None:
    """It splits words at @ and =."""
    id = filled("checkpoint", "list", "web", "--json").json[0]["id"]
    assert typed(*BASH, "casfs cat web@\t") == f"cat><web@{id}"
    assert typed(*BASH, f"casfs cat web@{id[-8:]}\t") == f"cat><web@{id}"
    wanted = "thread><start><demo><--agent><planner=command"
    assert typed(*BASH, "casfs thread start demo --agent pla\tcomm\t") == wanted


@needs("zsh")
@pytest.mark.parametrize(("keys", "wanted"), KEYS)
def test_in_zsh(filled: Cli, keys: str, wanted: str) -> None:
    assert typed(*ZSH, keys) == wanted


@needs("fish")
def test_in_fish(filled: Cli, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line, wanted in (("casfs cat wo", "work"), ("casfs thread show me", "mend")):
        script = f"_CASFS_COMPLETE=fish_source casfs | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [wanted], done.stderr
