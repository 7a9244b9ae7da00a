"""The tools of the reactor, with a real workspace, a real store and a real bubblewrap."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from engine.llm import sandbox, tools
from engine.llm.sandbox import Settings
from engine.llm.tools import TOOLS, Toolbox
from engine.secrets import redaction
from tests.support.agents import RUN, context
from tests.support.engine import alive, until
from tests.support.programs import needs

SHELL = Settings(allow_shell=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "src").mkdir(parents=True)
    (made / "a.txt").write_text("one\ntwo\nthree\n")
    (made / "src/b.py").write_text("def two():\n    return 2\n")
    return made


@pytest.fixture
def toolbox(store: Store, folder: Path) -> Toolbox:
    return Toolbox(context(store, workspace=folder))


async def use(toolbox: Toolbox, name: str, **arguments: Any) -> str:
    offered = tools.available_tools(toolbox.context, None)
    return await tools.call_tool(toolbox, offered, name, json.dumps(arguments))


# -- files --------------------------------------------------------------------------------


async def test_read(toolbox: Toolbox) -> None:
    assert await use(toolbox, "read_file", path="a.txt") == "one\ntwo\nthree\n"
    assert await use(toolbox, "read_file", path="a.txt", line=2, lines=1) == "two\n"
    assert await use(toolbox, "read_file", path="a.txt", line=3) == "three\n"
    assert await use(toolbox, "read_file", path="a.txt", line=9) == ""


async def test_write_and_edit(toolbox: Toolbox, folder: Path) -> None:
    assert await use(toolbox, "write_file", path="new/c", text="Grüße") == "wrote 7 bytes"
    assert (folder / "new/c").read_text() == "Grüße"
    assert await use(toolbox, "edit_file", path="a.txt", old="two", new="2") == "changed"
    assert (folder / "a.txt").read_text() == "one\n2\nthree\n"


@pytest.mark.parametrize(("old", "count"), [("e", 3), ("nowhere", 0)])
async def test_an_edit_must_be_unique(old: str, count: int, toolbox: Toolbox, folder: Path) -> None:
    said = await use(toolbox, "edit_file", path="a.txt", old=old, new="x")
    assert said == f"error: `old` stands {count} times in 'a.txt', and must once"
    assert (folder / "a.txt").read_text() == "one\ntwo\nthree\n"


async def test_list(toolbox: Toolbox, folder: Path) -> None:
    (folder / "link").symlink_to("a.txt")
    assert await use(toolbox, "list_dir") == "a.txt 14\nlink@\nsrc/"
    assert await use(toolbox, "list_dir", path="src") == "b.py 24"
    (folder / "empty").mkdir()
    assert await use(toolbox, "list_dir", path="empty") == "empty"


async def test_search(toolbox: Toolbox, folder: Path) -> None:
    (folder / "binary").write_bytes(b"two\0two")
    found = await use(toolbox, "search", text="two")
    assert found == "a.txt:2:two\nsrc/b.py:1:def two():"
    assert await use(toolbox, "search", text="two", path="src") == "src/b.py:1:def two():"
    assert await use(toolbox, "search", text="(a+)+$") == "nothing found"


async def test_only_so_many_hits(toolbox: Toolbox, folder: Path) -> None:
    (folder / "many").write_text("hit\n" * 1000)
    assert (await use(toolbox, "search", text="hit")).splitlines()[-1] == "[only the first 200]"


async def test_names_that_are_no_utf_8(toolbox: Toolbox, folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.txt")).write_text("two\n")
    assert "\ufffd.txt 4" in await use(toolbox, "list_dir")
    assert "\ufffd.txt:1:two" in await use(toolbox, "search", text="two")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", {"path": "../secret"}, "only paths below the workspace"),
        ("read_file", {"path": "/etc/passwd"}, "only paths below the workspace"),
        ("write_file", {"path": "../x", "text": ""}, "only paths below the workspace"),
        ("edit_file", {"path": "out/x", "old": "a", "new": "b"}, "through a link out"),
        ("list_dir", {"path": "out"}, "through a link out"),
        ("search", {"text": "a", "path": "out"}, "through a link out"),
        ("read_file", {"path": "gone"}, "no 'gone' in the workspace"),
        ("read_file", {"path": "binary"}, "is not UTF-8 text"),
        ("read_file", {}, r"\$: .*path"),
        ("read_file", {"path": "a.txt", "line": 0}, r"\$.line"),
        ("read_file", {"path": "a.txt", "more": 1}, r"\$: .*more"),
        ("fly", {}, "no tool 'fly'; there are read_file"),
        ("cas_get", {"hash": "0" * 64}, "no blob"),
    ],
)
async def test_what_goes_wrong_is_the_result(
    name: str, arguments: dict[str, Any], said: str, toolbox: Toolbox, folder: Path
) -> None:
    (folder / "out").symlink_to("/tmp")
    (folder / "binary").write_bytes(b"\xff\xfe")
    assert re.match(f"error: .*{said}", await use(toolbox, name, **arguments))


async def test_arguments_that_are_no_json(toolbox: Toolbox) -> None:
    offered = tools.available_tools(toolbox.context, None)
    assert (await tools.call_tool(toolbox, offered, "list_dir", "{")).startswith(
        "error: the arguments"
    )
    assert await tools.call_tool(toolbox, offered, "list_dir", "") == "a.txt 14\nsrc/"


async def test_a_long_result_is_cut(toolbox: Toolbox, folder: Path) -> None:
    (folder / "long").write_text("start" + "x" * 100_000 + "end")
    said = await use(toolbox, "read_file", path="long")
    assert said.startswith("start")
    assert said.endswith("end")
    assert "characters left out" in said
    assert len(said) < 33_000


def test_what_is_offered(store: Store, folder: Path) -> None:
    without = context(store)
    assert [tool.name for tool in tools.available_tools(without, None)] == ["cas_get", "cas_put"]
    within = context(store, workspace=folder)
    assert [tool.name for tool in tools.available_tools(within, None)] == list(TOOLS)
    assert [tool.name for tool in tools.available_tools(within, ["search"])] == ["search"]


# -- the store ----------------------------------------------------------------------------


async def test_the_store(toolbox: Toolbox, store: Store) -> None:
    hash = await use(toolbox, "cas_put", text="a finding")
    assert toolbox.artifacts == [hash]
    assert store.node(hash, "content").payload == {"text": "a finding", "artifacts": []}
    assert "a finding" in await use(toolbox, "cas_get", hash=hash[:12])
    blob = store.put(b"\xff").hash
    assert (await use(toolbox, "cas_get", hash=blob)).startswith("error: ")


async def test_no_secret_comes_back(store: Store, folder: Path) -> None:
    hidden = redaction.from_env(["KEY"], {"KEY": "hunter2-hunter2"})
    guarded = redaction.redacting_store(store, hidden)
    toolbox = Toolbox(context(guarded, workspace=folder, secrets=hidden))
    (folder / "env").write_text("KEY=hunter2-hunter2\n")
    assert await use(toolbox, "read_file", path="env") == "KEY=$KEY\n"
    hash = await use(toolbox, "cas_put", text="it is hunter2-hunter2")
    assert store.node(hash, "content").payload["text"] == "it is $KEY"


# -- commands -----------------------------------------------------------------------------


@needs("bwrap")
async def test_a_command_works_in_the_workspace(toolbox: Toolbox, folder: Path) -> None:
    said = await use(
        toolbox, "run_command", command="pwd; echo new >made; ls; echo oops >&2; exit 3"
    )
    assert said == f"exit code 3\n{folder}\na.txt\nmade\nsrc\nstderr:\noops"
    assert (folder / "made").read_text() == "new\n"


@needs("bwrap")
async def test_a_command_sees_the_system_and_cannot_change_it(toolbox: Toolbox) -> None:
    said = await use(toolbox, "run_command", command="ls -d /usr/bin; touch /usr/x /etc/x; true")
    assert "/usr/bin" in said
    assert said.count("Read-only file system") + said.count("Permission denied") >= 1
    assert not Path("/usr/x").exists()
    assert not Path("/etc/x").exists()


@needs("bwrap")
async def test_a_command_cannot_undo_its_sandbox(toolbox: Toolbox) -> None:
    """As root's it could mount what is read-only anew, or tell the kernel what to run."""
    caps = await use(toolbox, "run_command", command="grep CapEff /proc/self/status")
    assert caps == "exit code 0\nCapEff:\t0000000000000000"
    anew = "mount -o remount,rw,bind /usr && touch /usr/casfs-probe && rm /usr/casfs-probe"
    assert not (await use(toolbox, "run_command", command=anew)).startswith("exit code 0")
    within = f"unshare --user --map-root-user --mount sh -c '{anew}'"
    assert not (await use(toolbox, "run_command", command=within)).startswith("exit code 0")
    kernel = "for f in sys/kernel/core_pattern sysrq-trigger sys/vm/drop_caches; do "
    kernel += "(exec 3>>/proc/$f) && echo opened; done"
    said = await use(toolbox, "run_command", command=kernel)
    assert "opened" not in said
    assert "sys/kernel/core_pattern" in said


@needs("bwrap")
async def test_a_command_sees_no_files_beside_the_workspace(toolbox: Toolbox, folder: Path) -> None:
    (folder.parent / "secret").write_text("here it is")
    outside = Path("/tmp", folder.parent.name)
    command = f"cat {folder.parent}/secret; ls /root /home; cat /etc/shadow; echo x >{outside}"
    said = await use(toolbox, "run_command", command=command)
    assert "here it is" not in said
    assert said.count("No such file") >= 3
    assert not outside.exists()


@needs("bwrap")
async def test_a_command_has_no_network_unless_it_may(store: Store, folder: Path) -> None:
    command = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '"
    alone = await use(Toolbox(context(store, workspace=folder)), "run_command", command=command)
    assert alone == "exit code 0\nlo "
    settings = Settings(network=True)
    shared = Toolbox(context(store, workspace=folder), settings)
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    names = sorted(line.split(":")[0].strip() for line in lines)
    assert (await use(shared, "run_command", command=command)).split()[3:] == names


@needs("bwrap")
async def test_a_command_sees_what_the_config_names(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("given\n")
    settings = Settings(paths=[str(tmp_path / "data")])
    toolbox = Toolbox(context(store, workspace=folder), settings)
    said = await use(toolbox, "run_command", command=f"cd {tmp_path}/data && cat file; echo >file")
    assert said.startswith("exit code")
    assert "given" in said
    assert (tmp_path / "data/file").read_text() == "given\n"


@needs("bwrap")
async def test_a_command_has_no_environment_of_ours(store: Store, folder: Path) -> None:
    env = {"PATH": os.environ["PATH"], "API_KEY": "hunter2-hunter2", "LANG": "C.UTF-8"}
    toolbox = Toolbox(context(store, workspace=folder, env=env))
    said = await use(toolbox, "run_command", command="env")
    assert "hunter2" not in said
    assert "LANG=C.UTF-8" in said
    assert f"CASFS_RUN={RUN}" in said


@pytest.mark.parametrize("settings", [pytest.param(Settings(), marks=needs("bwrap")), SHELL])
async def test_a_limit_of_time(settings: Settings, store: Store, folder: Path) -> None:
    started: list[int] = []

    async def note(pid: int) -> None:
        started.append(pid)

    toolbox = Toolbox(context(store, workspace=folder, started=note), settings)
    said = await use(toolbox, "run_command", command="sleep 600 & sleep 600", timeoutS=0.3)
    assert said.startswith("error: ")
    assert said.endswith("took longer than 0.3 s")
    assert len(started) == 1
    until(lambda: not alive(started[0]), "the end of the command")


async def test_the_config_limits_what_a_model_may_ask_for(store: Store, folder: Path) -> None:
    settings = Settings(allow_shell=True, timeout=0.2)
    toolbox = Toolbox(context(store, workspace=folder), settings)
    said = await use(toolbox, "run_command", command="sleep 600", timeoutS=900)
    assert said.endswith("took longer than 0.2 s")


async def test_a_command_that_says_too_much(store: Store, folder: Path) -> None:
    toolbox = Toolbox(context(store, workspace=folder), SHELL)
    said = await use(toolbox, "run_command", command="seq 100000; seq 100000 >&2")
    assert len(said) < 33_000
    assert said.startswith("exit code 0\n1\n2\n")


async def test_no_bubblewrap_no_commands(store: Store, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").symlink_to("/bin/sh")
    env = {"PATH": str(tmp_path / "bin")}
    toolbox = Toolbox(context(store, workspace=folder, env=env))
    said = await use(toolbox, "run_command", command="echo hello")
    assert said.startswith("error: no commands: bubblewrap is not installed")
    allowed = Toolbox(context(store, workspace=folder, env=env), SHELL)
    assert await use(allowed, "run_command", command="echo hello") == "exit code 0\nhello"


async def test_a_bubblewrap_that_cannot_work(store: Store, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bwrap").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/bwrap").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    toolbox = Toolbox(context(store, workspace=folder, env=env))
    said = await use(toolbox, "run_command", command="echo hello")
    assert said.startswith("error: no commands: bubblewrap cannot make namespaces here")
    assert sandbox.Settings().allow_shell is False
