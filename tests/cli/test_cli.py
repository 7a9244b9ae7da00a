"""Every verb of the command line: what it prints, its JSON, its exit codes, and that bad
input is one line on stderr and leaves nothing in the store."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import casfs
from casfs import store as store_module
from casfs import threads
from casfs.cli.main import COMMANDS
from casfs.cli.main import cli as root_command
from casfs.store import Store
from engine.agents import loader
from engine.threads import lifecycle
from engine.workflow import registry as workflows
from tests.support.engine import (
    ONE,
    STATUS,
    Cli,
    alive,
    begin,
    carry_on,
    loop,
    rule,
    says,
    spawn,
    until,
    workflow,
)
from tests.support.programs import needs_device

DEVELOP = Path(workflows.__file__).parents[1] / "workflows" / "develop.json"
UNKNOWN = "ab" * 32
ULID = "01K00000000000000000000000"


@pytest.fixture
def bare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    """The command line, and no store yet."""
    return Cli(tmp_path / "store", monkeypatch, capfdbinary)


@pytest.fixture
def opened(cli: Cli) -> Iterator[Store]:
    """The same store, for what no verb does."""
    with Store.open(cli.root) as store:
        yield store


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src/main.py").write_text("print()\n")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("run")
    (folder / "node_modules").mkdir()
    return folder


def written(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


# -- help and start-up --------------------------------------------------------------------


def commands() -> list[list[str]]:
    """Every command and subcommand, as it is typed."""
    import click

    found: list[list[str]] = []
    for name in COMMANDS:
        found.append([name])
        command = root_command.get_command(click.Context(root_command), name)
        if isinstance(command, click.Group):
            found += [[name, verb] for verb in command.commands]
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
    [["frobnicate"], ["tree", "grow"], ["get"], ["put", "a", "b"], ["get", "--nope", "x"]],
    ids=" ".join,
)
def test_usage(arguments: list[str], cli: Cli) -> None:
    answer = cli(*arguments, code=2)
    assert answer.err.startswith("casfs: ")
    assert "--help`." in answer.err
    assert answer.err.count("\n") == 1


def test_a_reader_that_has_had_enough_is_no_error(cli: Cli) -> None:
    script = '"$0" -m casfs --store "$1" heads | head -n 1; echo "${PIPESTATUS[*]}"'
    argv = ["bash", "-c", script, sys.executable, str(cli.root)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 0"
    assert done.stderr == ""


# -- the store ----------------------------------------------------------------------------


def test_init(cli: Cli, tmp_path: Path) -> None:
    assert cli("init").word == str(cli.root)
    assert stat.S_IMODE(cli.root.stat().st_mode) == 0o700
    shown = cli("--store", tmp_path / "other", "init", "--json").json
    assert shown["store"] == str(tmp_path / "other")
    assert {"schema", "content", "thread-step", "command-detail"} <= set(shown["types"])


def test_put_and_get(cli: Cli, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "data").write_bytes(data)
    hash = cli("put", tmp_path / "data").word
    assert cli("put", "-", stdin=data).word == hash
    assert cli("put", "-", "--json", stdin=data).json == {"hash": hash, "size_bytes": len(data)}
    assert cli("get", hash).out == cli("get", hash[:8]).out == data
    assert cli("get", cli("put", "-").word).out == b""


def test_has_and_missing(cli: Cli) -> None:
    hash = cli("put", "-", stdin=b"x").word
    assert cli("has", hash).text == f"{hash} yes\n"
    assert cli("has", hash, UNKNOWN, code=3).text == f"{hash} yes\n{UNKNOWN} no\n"
    assert cli("has", hash, UNKNOWN, "--json", code=3).json == {hash: True, UNKNOWN: False}
    lines = f"{hash}\n\n{UNKNOWN}\r\n{UNKNOWN}".encode()
    assert cli("missing", stdin=lines).text == f"{UNKNOWN}\n"
    assert cli("missing", "--json", stdin=lines).json == [UNKNOWN]
    assert cli("missing").out == b""


def test_refs_walk_and_nodes(cli: Cli) -> None:
    blob = cli("put", "-", stdin=b"x").word
    payload = {"text": "hällo", "artifacts": [blob, blob]}
    node = cli("node", "put", "content", "-", stdin=json.dumps(payload).encode()).word
    content = cli("schema", "list", "--json").json
    types = {one["name"]: one["hash"] for one in content}
    assert cli("refs", node).text.split() == [blob, types["content"]]
    assert cli("refs", node, "--json").json == [blob, types["content"]]
    assert cli("walk", node).text.split() == [node, blob, types["content"], types["schema"]]
    assert cli("walk", node, "--json").json == cli("walk", node[:10]).text.split()
    shown = cli("node", "get", node).json
    assert shown == {"hash": node, "type": "content", "payload": payload}
    assert cli("node", "get", node, "--json").out.count(b"\n") == 1
    assert json.loads(cli("get", node).out)["type"] == types["content"]
    again = cli("node", "put", "content", "-", "--json", stdin=json.dumps(payload).encode())
    assert again.json["hash"] == node


def test_heads(cli: Cli) -> None:
    cli("workflow", "add", DEVELOP)
    lines = cli("heads", "workflows/").text.splitlines()
    hash = cli("workflow", "list", "--json").json[0]["hash"]
    assert lines == [f"workflows/develop {hash}"]
    assert cli("heads", "workflows/", "--json").json == [
        {"name": "workflows/develop", "hash": hash, "record": {}}
    ]
    assert len(cli("heads").text.splitlines()) > 10
    assert cli("heads", "nothing/").out == b""


def test_status_without_processes(cli: Cli) -> None:
    nothing = {"store": str(cli.root), "daemon": None, "mounts": [], "serving": []}
    assert cli("status", "--json").json == nothing
    assert cli("status").text == f"store   {cli.root}\ndaemon  none\n"


def test_config(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = {one["name"]: one for one in cli("config", "--json").json}
    assert shown["store"]["from"] == "CASFS_STORE"
    assert shown["runs.limit"] == {"name": "runs.limit", "value": 8, "from": "default"}
    (cli.root / "config.toml").write_text("[runs]\nlimit = 3\n")
    assert f"runs.limit = 3  ({cli.root / 'config.toml'}; " in cli("config").text
    monkeypatch.setenv("CASFS_RUNS_LIMIT", "5")
    assert "runs.limit = 5  (CASFS_RUNS_LIMIT; " in cli("config").text
    monkeypatch.setenv("CASFS_RUNS_LIMIT", "many")
    assert "'many' is not a whole number" in cli.refused("config", code=4)


# -- schemas, trees, checkpoints ----------------------------------------------------------


def test_schemas(cli: Cli, tmp_path: Path) -> None:
    document = {"$id": "note", "type": "object", "properties": {"about": {"format": "cas_ref"}}}
    added = cli("schema", "add", written(tmp_path / "s.json", document))
    hash = added.word
    assert added.text == f"{hash} note\n"
    assert cli("schema", "add", "-", "--json", stdin=json.dumps(document).encode()).json == {
        "hash": hash,
        "name": "note",
    }
    assert f"note {hash}\n" in cli("schema", "list").text
    assert cli("schema", "show", "note").json == document
    assert cli("schema", "show", "note", "--json").json == document


def test_trees(cli: Cli, project: Path, tmp_path: Path) -> None:
    one = cli("tree", "build", project).word
    shown = cli("tree", "build", project, "--json").json
    assert (shown["hash"], shown["files"]) == (one, 2)
    assert cli("tree", "build", project, "--no-default-excludes").word != one
    names = [entry["name"] for entry in cli("tree", "ls", one, "--json").json]
    assert names == ["link", "run", "src"]
    lines = cli("tree", "ls", one[:8]).text.splitlines()
    assert [line[0] for line in lines] == ["l", "x", "d"]
    assert lines[0].endswith(" link -> run")
    assert cli("tree", "ls", one, "src/main.py").text.split()[-1] == "main.py"
    (project / "src/main.py").write_text("print(1)\n")
    (project / "run").chmod(0o644)
    (project / "link").unlink()
    (project / os.fsdecode(b"new\xe9")).touch()
    two = cli("tree", "build", project).word
    assert cli("tree", "diff", one, two).out == (b"D link\nA new\xe9\nT run\nM src/main.py\n")
    assert [change["letter"] for change in cli("tree", "diff", one, two, "--json").json] == [
        *"DATM"
    ]
    assert cli("tree", "diff", one, one).out == b""
    assert cli("tree", "restore", two, tmp_path / "back").word == two
    assert sorted(os.listdir(os.fsencode(tmp_path / "back"))) == [b"new\xe9", b"run", b"src"]
    assert cli("tree", "restore", one, tmp_path / "b2", "--json").json["root"] == one
    assert cli("tree", "build", tmp_path / "b2").word == one


def test_checkpoints(cli: Cli, project: Path, tmp_path: Path) -> None:
    first = cli("checkpoint", "create", "work", project, "-m", "before")
    assert "3 added, 0 modified, 0 deleted; " in first.text
    (project / "src/main.py").write_text("print(1)\n")
    made = cli("checkpoint", "create", "work", project, "--json").json
    assert made["stats"]["modified"] == 1
    listed = cli("checkpoint", "list", "work", "--json").json
    assert [one["id"] for one in listed] == [first.word, made["id"]]
    assert cli("checkpoint", "list").text.splitlines()[0].startswith(f"work@{first.word} ")
    assert cli("checkpoint", "list").text.splitlines()[0].endswith(" before")
    assert cli("checkpoint", "restore", f"work@{first.word}", tmp_path / "old").word == first.word
    assert (tmp_path / "old/src/main.py").read_text() == "print()\n"
    shown = cli("checkpoint", "restore", "work", tmp_path / "new", "--json").json
    assert (shown["root"], shown["id"]) == (made["root"], made["id"])
    assert cli("tree", "diff", f"work@{first.word}", "work").text == "M src/main.py\n"
    for name in ("work", "work@latest", made["hash"], made["root"]):
        assert cli("tree", "ls", name).text == cli("tree", "ls", made["root"]).text


def test_a_tree_may_be_named_by_a_step(cli: Cli, opened: Store, project: Path) -> None:
    tree = cli("tree", "build", project).word
    thread = begin(opened, ONE, {"a": says({})}, tree)
    ended = run_thread(opened, thread)
    step = threads.last_step(opened, ended)
    assert step is not None
    assert cli("tree", "ls", step).text == cli("tree", "ls", tree).text
    bare = threads.last_step(opened, run_thread(opened, begin(opened, ONE, {"a": says({})})))
    assert bare is not None
    assert "that step has no workspace" in cli.refused("tree", "ls", bare, code=3)


# -- workflows and agents -----------------------------------------------------------------


def test_workflows(cli: Cli, tmp_path: Path) -> None:
    added = cli("workflow", "add", DEVELOP)
    assert added.text == f"{added.word} develop\n"
    assert (added.err, cli("workflow", "add", DEVELOP).word) == ("", added.word)
    assert cli("workflow", "list").text == f"develop {added.word}\n"
    shown = cli("workflow", "show", "develop", "--json")
    assert shown.json == json.loads(DEVELOP.read_text())
    assert cli("workflow", "add", "-", stdin=shown.out).word == added.word
    for name in ("develop", added.word, added.word[:8]):
        assert "  __start__ -> planner\n" in cli("workflow", "show", name).text
    assert cli("workflow", "validate", DEVELOP).text == "ok\n"
    assert cli("workflow", "validate", DEVELOP, "--json").json == {"errors": [], "warnings": []}


def test_a_workflow_with_warnings_is_added_all_the_same(cli: Cli, tmp_path: Path) -> None:
    rules = [rule("__start__", "a"), rule("a", "__end__", "$steps[-1].meta.status = 'odd'")]
    file = written(tmp_path / "w.json", workflow(rules, a=STATUS))
    answer = cli("workflow", "add", file)
    assert answer.err.startswith(f"casfs: warning: {file}: ")
    assert cli("workflow", "validate", file).text.startswith("warning: ")
    shown = cli("workflow", "add", file, "--json").json
    assert (shown["hash"], len(shown["warnings"])) == (answer.word, answer.err.count("\n"))


def test_a_workflow_with_errors_is_told_all_of_them(cli: Cli, tmp_path: Path) -> None:
    rules = [rule("__start__", "b"), rule("a", "__end__", "(")]
    file = written(tmp_path / "w.json", workflow(rules, a=None))
    lines = cli("workflow", "validate", file, code=4).text.splitlines()
    assert {line.split(":")[0] for line in lines} == {"error"}
    assert any("unknown role 'b'" in line for line in lines)
    shown = cli("workflow", "validate", "-", "--json", stdin=file.read_bytes(), code=4).json
    assert [f"error: {error}" for error in shown["errors"]] == lines


def test_what_is_next(cli: Cli, tmp_path: Path) -> None:
    cli("workflow", "add", DEVELOP)
    planned = [{"role": "planner", "meta": {"status": "planned", "phases": [{"hash": UNKNOWN}]}}]
    steps = json.dumps(planned).encode()
    for source in ("develop", DEVELOP):
        assert cli("workflow", "next", source, "--steps", "-", stdin=b"[]").text == "planner\n"
        assert cli("workflow", "next", source, "--steps", "-", stdin=steps).text == "coder\n"
    aborted = written(tmp_path / "s.json", [{"role": "planner", "meta": {"status": "aborted"}}])
    assert cli("workflow", "next", "develop", "--steps", aborted).text == "__end__\n"
    shown = cli("workflow", "next", "develop", "--steps", aborted, "--json").json
    assert (shown["next"], shown["returnCode"]) == ("__end__", 0)
    shown = cli("workflow", "next", "develop", "--steps", "-", "--json", stdin=steps).json
    assert shown == {"next": "coder"}


def test_agents(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "torn-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torn\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casfs.agents]\ntorn = nothing_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    lines = cli("agent", "list").text.splitlines()
    assert f"command {casfs.__version__}" in lines
    assert any(line.startswith("torn  broken: agent torn: does not load") for line in lines)
    shown = {one["name"]: one for one in cli("agent", "list", "--json").json}
    assert shown["command"]["capabilities"] == ["run"]
    assert "does not load" in shown["torn"]["error"]
    described = cli("agent", "describe", "command").json
    assert described["configSchema"] == loader.load("command").descriptor["configSchema"]
    assert cli("agent", "describe", "command", "--json").json == described
    cli.refused("agent", "describe", "torn", code=1)
    cli.refused("agent", "describe", "nobody", code=3)


# -- threads (what runs them is in test_daemon.py) ----------------------------------------


def run_thread(store: Store, thread: threads.Thread) -> threads.Thread:
    import trio

    return trio.run(carry_on, store, thread)


def test_threads(cli: Cli, opened: Store) -> None:
    meta = {"status": ["odd", "kinds"]}
    ended = run_thread(opened, begin(opened, loop(3), {"a": says(meta, "echo hi")}))
    rests = run_thread(opened, begin(opened, ONE, {"a": says({}, "exit 1")}))
    listed = cli("thread", "list", "--json").json
    assert [(one["id"], one["status"]) for one in listed] == [
        (ended.id, "ended"),
        (rests.id, "suspended"),
    ]
    assert listed[0] == {
        "id": ended.id,
        "workflow": "sample",
        "status": "ended",
        "head": ended.hash,
        "start": ended.record["start"],
        "updatedAt": ended.record["updatedAt"],
        "reason": None,
        "cause": None,
        "returnCode": 0,
        "intent": None,
        "spent": ended.record["spent"],
        "parent": None,
    }
    lines = cli("thread", "list").text.splitlines()
    assert lines[1].split()[:3] == [rests.id, "suspended", "sample"]
    shown = cli("thread", "show", ended.id.lower(), "--json").json
    assert [step["index"] for step in shown["steps"]] == [1, 2, 3]
    assert (shown["input"], shown["summary"]) == ("Do it.", "ended after a")
    text = cli("thread", "show", ended.id).text
    assert text.startswith(f"{ended.id}  sample  ended\nreturnCode: 0\nsummary: ended after a\n")
    assert "reason: a: sh exited with 1" in cli("thread", "show", rests.id).text


def test_the_log_of_a_thread(cli: Cli, opened: Store) -> None:
    ended = run_thread(opened, begin(opened, loop(3), {"a": says({}, "echo hi")}))
    assert cli("thread", "log", ended.id).text.count("a\nhi\n```json\n") == 3
    assert cli("thread", "log", ended.id, "--last", "2").text.startswith("--- 000002 a\nhi\n")
    assert cli("thread", "log", ended.id, "--follow", "--last", "1").text.count("--- ") == 1
    lines = cli("thread", "log", ended.id, "--json").text.splitlines()
    assert [json.loads(line)["index"] for line in lines] == [1, 2, 3]
    assert json.loads(lines[0])["output"].startswith("hi\n")
    fresh = begin(opened, ONE, {"a": says({})})
    assert cli("thread", "log", fresh.id).out == b""


def test_one_broken_thread_breaks_no_list(cli: Cli, opened: Store) -> None:
    bad, good = begin(opened, ONE, {"a": says({})}), begin(opened, ONE, {"a": says({})})
    with opened.batch() as batch:
        batch.move(bad.name, bad.head, bad.hash, {})
    assert [line.split()[0] for line in cli("thread", "list").text.splitlines()] == [
        bad.id,
        good.id,
    ]
    assert cli("thread", "list", "--json").json[0]["status"] == "broken"


def test_threads_need_the_daemon(cli: Cli, opened: Store) -> None:
    thread = begin(opened, ONE, {"a": says({})})
    for arguments in (
        ["thread", "start", "sample", "--input", "x"],
        ["thread", "resume", thread.id],
        ["thread", "cancel", thread.id],
        ["thread", "compact", thread.id, "--text", "x"],
        ["daemon", "stop"],
    ):
        assert "no daemon runs" in cli.refused(*arguments, code=5)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("a", "give ROLE=NAME or ROLE=NAME:JSON"),
        ("=command", "give ROLE=NAME"),
        ("a=", "give ROLE=NAME"),
        ("a=command:{", "--agent a: config is not JSON"),
        ("a=command:[1]", "--agent a: config must be a JSON object"),
    ],
)
def test_an_agent_option_that_is_none(option: str, said: str, cli: Cli) -> None:
    arguments = ("thread", "start", "sample", "--input", "x", "--agent", option)
    assert said in cli.refused(*arguments, code=2)


# -- bad input ----------------------------------------------------------------------------


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
    (["workflow", "add"], "nonsense", 4, "not JSON: "),
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
        (["get", "../../etc/passwd"], 4, "is not a valid hash"),
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
        (["tree", "ls", "nothing"], 3, "'nothing' is neither a hash nor a checkpoint name"),
        (["tree", "ls", UNKNOWN], 3, UNKNOWN),
        (["tree", "diff", UNKNOWN, UNKNOWN], 3, UNKNOWN),
        (["checkpoint", "create", "work", "/no/such"], 3, "no directory /no/such"),
        (["checkpoint", "create", "a/b", "/etc"], 4, "invalid checkpoint name 'a/b'"),
        (["checkpoint", "create", "latest", "/etc"], 4, "invalid checkpoint name 'latest'"),
        (["checkpoint", "list", "work"], 3, "no checkpoint 'work'"),
        (["checkpoint", "restore", "work", "/tmp/x"], 3, "no checkpoint 'work'"),
        (["workflow", "add", "/no/such"], 3, "no file /no/such"),
        (["workflow", "show", "nothing"], 3, "no workflow 'nothing'; see `casfs workflow list`"),
        (["workflow", "next", "nothing", "--steps", "-"], 4, "stdin: not JSON"),
        (["thread", "show", ULID], 3, f"no thread '{ULID}'; see `casfs thread list`"),
        (["thread", "log", "01K"], 3, "no thread '01K'"),
        (["thread", "resume", ""], 3, "no thread ''"),
        (["thread", "start", "w", "--input", "@/no/such"], 3, "no file /no/such"),
        (["thread", "start", "w", "--input", "x", "--max-steps", "0"], 2, "--max-steps"),
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


def test_nothing_is_restored_over_what_is_there(cli: Cli, project: Path) -> None:
    tree = cli("tree", "build", project).word
    cli("checkpoint", "create", "work", project)
    before = sorted(os.listdir(project))
    assert "not empty and not restored by casfs before; use --base TREE" in cli.refused(
        "tree", "restore", tree, project, code=4
    )
    assert "not empty and not restored by casfs before; use --base TREE" in cli.refused(
        "checkpoint", "restore", "work", project, code=4
    )
    assert "not a directory" in cli.refused("tree", "restore", tree, project / "run", code=4)
    assert sorted(os.listdir(project)) == before


def test_what_cannot_be_read_is_named_and_no_checkpoint_is_made(
    bare: Cli, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so root does this as somebody else."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(runtime_dir))
    bare.root = runtime_dir / "store"
    bare("init")
    project = runtime_dir / "project"
    (project / "src").mkdir(parents=True)
    (project / "src/secret").touch()
    bare("checkpoint", "create", "fine", project)
    (project / "src/secret").chmod(0)
    (project / "src/later").touch()
    with powerless(runtime_dir):
        line = bare.refused("checkpoint", "create", "work", project, code=1)
    assert line == f"casfs: cannot read {project}/src/secret: Permission denied\n"


@contextmanager
def powerless(top: Path) -> Iterator[None]:
    """Without root's powers, owning what is below `top`. Modules must be loaded already."""
    if os.geteuid() != 0:
        yield
        return
    for folder, below, files in os.walk(top):
        for path in (folder, *(os.path.join(folder, name) for name in [*below, *files])):
            os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


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


def test_mount_points(cli: Cli, project: Path) -> None:
    inside = cli.root / "mnt"
    inside.mkdir()
    assert "is inside the store" in cli.refused("mount", inside, code=4)
    assert "is not empty" in cli.refused("mount", project, code=4)
    assert "is not a directory" in cli.refused("mount", project / "run", code=4)
    assert cli.refused("mount", project / "gone", code=3)
    assert "no casfs mount" in cli.refused("umount", project, code=3)


@needs_device
def test_mount_and_umount(cli: Cli, tmp_path: Path) -> None:
    point = tmp_path / "point"
    point.mkdir()
    hash = cli("put", "-", stdin=b"seen").word
    try:
        shown = cli("mount", point, "--json").json
        assert (shown["mount"], alive(shown["pid"])) == (str(point), True)
        assert (point / "blobs" / hash).read_bytes() == b"seen"
        assert cli("status", "--json").json["mounts"] == [str(point)]
        assert f"mount   {point}\n" in cli("status").text
        assert "is a mount point already" in cli.refused("mount", point, code=4)
        with (point / "blobs" / hash).open():
            assert "is busy" in cli.refused("umount", point, code=4)
        assert cli("umount", point, "--json").json == {"unmounted": str(point)}
        until(lambda: not alive(shown["pid"]), "the end of the mount")
    finally:
        subprocess.run(["fusermount3", "-u", "-z", point], capture_output=True)
    assert os.listdir(point) == []


def test_journal_and_cli_agree_on_max_rounds(cli: Cli) -> None:
    assert f"[default: {lifecycle.MAX_ROUNDS};" in cli("thread", "start", "--help").text


def test_it_is_one_program(cli: Cli) -> None:
    done = spawn("--store", cli.root, "get", UNKNOWN)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"casfs: no blob {UNKNOWN} in this store\n"
    script = Path(sys.executable).with_name("casfs")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"casfs, version {casfs.__version__}\n"
