"""Bad files, arguments, stores: one line on stderr, and the right exit code."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Refused
from casfs.store import store as store_module
from casfs.store.store import Store
from casfs.system.home import refuse_home_or_root
from tests.support.cli import ULID, UNKNOWN, written
from tests.support.engine import (
    ONE,
    Cli,
    begin,
    rule,
    says,
    workflow,
)

PICKY = [rule("__start__", "a"), rule("a", "__end__")]


AGENT = {"package": "p", "version": "", "config": {}}


def ending(when: str) -> dict[str, Any]:
    """A workflow that ends by that expression."""
    return workflow([PICKY[0], rule("a", "__end__", when)], a=None)


BAD: list[tuple[list[str], Any, int, str]] = [
    (["node", "put", "content"], "{text", 4, "not JSON: "),
    (["node", "put", "content"], "", 4, "not JSON: "),
    (["node", "put", "content"], '{"a": 1, "a": 2}', 4, "duplicate key 'a'"),
    (["node", "put", "content"], {"text": 1, "artifacts": []}, 4, "content: $.text: 1 is not of"),
    (["node", "put", "content"], {"text": ""}, 4, '$: "artifacts" is a required property'),
    (["node", "put", "content"], {"text": "", "artifacts": ["x"]}, 4, "$.artifacts[0]: "),
    (["node", "put", "content"], {"text": "", "artifacts": [UNKNOWN]}, 4, UNKNOWN),
    (["node", "put", "agent"], {**AGENT, "config": {"n": 1e20}}, 4, "$.config.n"),
    (["node", "put", "nothing"], {}, 3, "no type 'nothing'; see `casfs schema list`"),
    (["schema", "add"], "nonsense", 4, "not JSON: "),
    (["schema", "add"], {"type": "object"}, 4, 'a schema needs "$id"'),
    (["schema", "add"], {"$id": "x", "type": "objekt"}, 4, "not a schema: $.type: "),
    (["schema", "add"], {"$id": "x", "unheardOf": 1}, 4, "the keyword 'unheardOf'"),
    (["schema", "add"], {"$id": "content"}, 4, "built in"),
    (["workflow", "add"], [1], 4, "$: must be an object"),
    (["workflow", "add"], "{roles", 4, "not JSON: "),
    (["workflow", "add"], [], 4, "$: must be an object"),
    (["workflow", "add"], workflow([*PICKY, rule("a", "b")], a=None), 4, "unknown role 'b'"),
    (["workflow", "add"], workflow([*PICKY, rule("x", "a")], a=None), 4, "unknown role 'x'"),
    (["workflow", "add"], ending("1 +"), 4, "does not parse"),
    (["workflow", "add"], ending("$now()"), 4, "$now"),
    (["workflow", "add"], workflow(PICKY, a={"name": "m", "type": 1}), 4, "$.roles.a.schema"),
]


@pytest.mark.parametrize(
    ("arguments", "content", "code", "said"), BAD, ids=[f"{b[0][0]}: {b[3]}" for b in BAD]
)
def test_a_bad_file(
    arguments: list[str], content: Any, code: int, said: str, cli: Cli, tmp_path: Path
) -> None:
    file = written(tmp_path / "bad.json", content)
    line = cli.refused(*arguments, file, code=code)
    assert said in line
    assert code == 3 or str(file) in line
    assert said in cli.refused(*arguments, "-", stdin=file.read_bytes(), code=code)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["get", UNKNOWN], 3, f"no blob {UNKNOWN} in this store"),
        (["get", "abcdef01"], 3, "no blob abcdef01… in this store"),
        (["get", "abcdef0"], 4, "'abcdef0' is not a valid hash"),
        (["get", "ABCDEF0123"], 4, "is not a valid hash"),
        (["get", "../../no/such"], 4, "is not a valid hash"),
        (["get", "/etc/passwd"], 3, "/etc/passwd is in no directory that has a checkpoint"),
        (["has", "abcdef01"], 4, "'abcdef01' is not a valid hash"),
        (["refs", UNKNOWN], 3, UNKNOWN),
        (["walk", UNKNOWN], 3, UNKNOWN),
        (["node", "get", UNKNOWN], 3, UNKNOWN),
        (["put", "/no/such"], 3, "no file /no/such"),
        (["put", "/"], 1, "cannot read /: Is a directory"),
        (["node", "put", "content", "/no/such"], 3, "no file /no/such"),
        (["node", "put", "content", "/"], 1, "cannot read /: Is a directory"),
        (["schema", "show", "nothing"], 3, "no type 'nothing'"),
        (["tree", "build", "/no/such"], 3, "no directory /no/such"),
        (["tree", "build", "/etc/passwd"], 3, "no directory /etc/passwd"),
        (["tree", "ls", "nothing"], 3, "'nothing' is neither a hash nor a checkpoint"),
        (["tree", "ls", UNKNOWN], 3, UNKNOWN),
        (["tree", "diff", UNKNOWN, UNKNOWN], 3, UNKNOWN),
        (["checkpoint", "create", "work", "/no/such"], 3, "no directory /no/such"),
        (["checkpoint", "create", "a/b", "/etc"], 4, "invalid checkpoint name 'a/b'"),
        (["checkpoint", "create", "latest", "/etc"], 4, "invalid checkpoint name 'latest'"),
        (["checkpoint", "list", "work"], 3, "no checkpoint 'work'"),
        (["checkpoint", "restore", "work", "/tmp/x"], 3, "'work' is neither a hash"),
        (["workflow", "add", "/no/such"], 3, "no file /no/such"),
        (["workflow", "show", "nothing"], 3, "no workflow 'nothing'; see `casfs workflow list`"),
        (["workflow", "next", "nothing", "--steps", "-"], 4, "stdin: not JSON"),
        (["thread", "show", ULID], 3, f"no thread '{ULID}'; see `casfs thread list`"),
        (["thread", "log", "01K"], 3, "no thread '01K'"),
        (["thread", "resume", ""], 3, "no thread ''"),
        (["thread", "start", "w", "--input", "@/no/such"], 3, "no file /no/such"),
        (["thread", "start", "w", "--input", "x", "--max-steps", "0"], 2, "--max-steps"),
        *(
            (["thread", "start", "w", "--input", "x", "--max-seconds", one], 2, "at most 1e+09")
            for one in ("nan", "inf", "1e309")
        ),
        (
            ["thread", "start", "w", "--input", "x", "--agent", "a=human", "--agent", "a=human"],
            2,
            "--agent a: the role has an agent already",
        ),
        (["umount", "/no/such"], 3, "no casfs mount at /no/such"),
        (["mount", "/no/such"], 3, "no directory /no/such"),
        (["mount", "/etc"], 4, "/etc is not empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_arguments(arguments: list[str], code: int, said: str, cli: Cli) -> None:
    assert said in cli.refused(*arguments, code=code)


def test_an_ambiguous_prefix(cli: Cli, opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """More blobs than there are hex digits: two of them share the first one."""
    firsts = [hash[0] for _, hash, _ in opened.blobs.iterate()]
    twice = next(first for first in firsts if firsts.count(first) > 1)
    assert "or a prefix of 8 or more" in cli.refused("get", twice, code=4)
    monkeypatch.setattr(store_module, "MIN_PREFIX_CHARS", 1)
    assert f"{twice} is ambiguous: {twice}" in cli.refused("get", twice, code=4)


def test_an_ambiguous_thread(cli: Cli, opened: Store) -> None:
    found = [begin(opened, ONE, {"a": says({})}) for _ in range(2)]
    line = cli.refused("thread", "show", found[0].id[:5], code=4)
    assert f"{found[0].id}, {found[1].id}; give more of the id" in line


def test_text_that_is_not_utf_8(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "latin"
    file.write_bytes(b"caf\xe9")
    start = ("thread", "start", "w", "--input", f"@{file}")
    assert f"{file}: byte 3 is not UTF-8" in cli.refused(*start, code=4)
    assert "byte 3 is not UTF-8" in cli.refused("workflow", "add", file, code=4)
    assert "is not a valid hash" in cli.refused("missing", stdin=b"\xff\n", code=4)


def test_a_blob_is_no_tree_and_no_node(cli: Cli) -> None:
    blob = cli("put", "-", stdin=b"x").word
    assert f"{blob} is a blob, not a node" in cli.refused("node", "get", blob, code=3)
    assert f"{blob} is a blob, not a node" in cli.refused("tree", "ls", blob, code=3)
    schema = cli("schema", "list", "--json").json[0]["hash"]
    assert "is a schema, not a tree" in cli.refused("tree", "ls", schema, code=3)
    assert cli("refs", blob).out == b""


def test_a_path_that_a_tree_does_not_have(cli: Cli, project: Path) -> None:
    tree = cli("tree", "build", project).word
    assert f"src/no: not in tree {tree}" in cli.refused("tree", "ls", tree, "src/no", code=3)
    assert "run is not a directory" in cli.refused("tree", "ls", tree, "run/x", code=3)
    assert "must not contain .." in cli.refused("tree", "ls", tree, "../etc", code=4)


def test_nothing_is_restored_over_what_is_there(cli: Cli, project: Path, tmp_path: Path) -> None:
    tree = cli("tree", "build", project).word
    shutil.copytree(project, tmp_path / "copy", symlinks=True)
    cli("checkpoint", "create", "work", tmp_path / "copy")
    before = sorted(os.listdir(project))
    assert "not empty and not restored by casfs before; use --base TREE" in cli.refused(
        "tree", "restore", tree, project, code=4
    )
    assert "not empty and not restored by casfs before; use --base TREE" in cli.refused(
        "checkpoint", "restore", "work", project, code=4
    )
    assert "not a directory" in cli.refused("tree", "restore", tree, project / "run", code=4)
    assert sorted(os.listdir(project)) == before


def test_no_store(cli: Cli, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for arguments in (
        ["get", UNKNOWN],
        ["put", "-"],
        ["status"],
        ["checkpoint", "create", "work", "."],
        ["daemon"],
        ["daemon", "stop"],
        ["mount", str(tmp_path)],
        ["thread", "list"],
    ):
        line = cli.refused("--store", nowhere, *arguments, code=3)
        assert line == f"casfs: no store at {nowhere}; make one with `casfs init`\n"
    assert not nowhere.exists()


def test_a_directory_that_is_no_store(cli: Cli, project: Path) -> None:
    before = sorted(os.listdir(project))
    assert "is not empty and not a store" in cli.refused("--store", project, "init", code=4)
    assert sorted(os.listdir(project)) == before


def test_a_store_of_another_format_version(cli: Cli, tmp_path: Path) -> None:
    (cli.root / "format").write_text("casfs 99\n")
    before = (cli.root / "store.db").read_bytes()
    for arguments in (["init"], ["put", "-"], ["status"], ["daemon"], ["mount", str(tmp_path)]):
        answer = cli(*arguments, code=4, stdin=b"x")
        assert "format" in answer.err
        assert answer.err.count("\n") == 1
    assert (cli.root / "store.db").read_bytes() == before


def test_no_option_is_named_that_the_verb_does_not_have(cli: Cli) -> None:
    assert "--force" not in cli("thread", "start", "--help").text
    with pytest.raises(Refused, match=r"home directory; name another directory$"):
        refuse_home_or_root(Path("/"), None)
    with pytest.raises(Refused, match=r"--force$"):
        refuse_home_or_root(Path("/"), force=False)


TOO_MANY = str(10**23)


@pytest.mark.parametrize(
    "verb",
    [
        *(["list", "content", "--limit"], ["list", "content", "--offset"], ["gc", "--grace"]),
        *(["search", "x", "--limit"], ["gc", "--max-inodes"], ["thread", "list", "--limit"]),
    ],
)
def test_a_number_that_is_too_large(cli: Cli, verb: list[str]) -> None:
    """Fails before: tracebacks of list, search and gc."""
    assert "is too large" in cli(*verb, TOO_MANY, code=2).err
    cli(*verb, str(2**53 - 1))


@pytest.mark.parametrize("seconds", ["1e12", "1e9", "nan", "0"])
def test_a_timeout_that_no_call_takes(cli: Cli, tmp_path: Path, seconds: str) -> None:
    """Fails before: a traceback."""
    argv = ("action", "run", "--input", tmp_path / "none", "--timeout", seconds, "--", "true")
    (tmp_path / "none").mkdir()
    assert "invalid timeout" in cli(*argv, code=4).err
