"""What a config takes from the environment is in no node, no row, no file and no log."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import secrets as agent_secrets
from casfs.agents.prompt import EarlierStep, Prompt
from casfs.agents.secrets import NO_SECRETS, Secrets
from casfs.backend.protocols import Head
from casfs.errors import Conflict
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from engine.agents import loader
from engine.llm import tools
from engine.llm.sandbox import Settings
from engine.llm.tools import Toolbox
from engine.secrets import redaction
from engine.threads.agent_binding import Binding, redacting_store
from engine.workflow import registry as workflows
from tests.support.agents import context
from tests.support.engine import ONE, begin, carry_on, daemon, rule, shell, workflow
from tests.support.model_server import served, text, tool_calls

VALUE = 'sk-"hunter2"\\hunter2'
SECRETS = Secrets({"KEY": VALUE, "LONGER": VALUE + "-more", "SHORT": "abc", "EMPTY": ""})

# -- hiding -------------------------------------------------------------------------------


def test_a_value_is_replaced_by_its_name() -> None:
    assert SECRETS.redact(f"a {VALUE} b {VALUE}") == "a $KEY b $KEY"
    assert SECRETS.redact(f"{VALUE}-more") == "$LONGER"
    assert SECRETS.redact("abc") == "abc"
    assert SECRETS.redact_bytes(b"\xff" + VALUE.encode()) == b"\xff$KEY"
    assert NO_SECRETS.redact(VALUE) == VALUE
    assert not NO_SECRETS


def test_a_value_inside_json() -> None:
    hidden = SECRETS.redact(json.dumps({"key": VALUE}))
    assert json.loads(hidden) == {"key": "$KEY"}


def test_a_value_of_several_lines_in_a_diff() -> None:
    hide = Secrets({"PEM": "-- begin\nabc\n-- end"}).redact
    assert hide("@@ @@\n+-- begin\n+abc\n+-- end\n") == "@@ @@\n+$PEM\n"
    assert hide(" -- begin\n abc\n -- end\n") == " $PEM\n"


def test_everything_in_a_value() -> None:
    value = {"a": [VALUE, 1, None, True, {"b": f"x{VALUE}"}], VALUE: 1.5}
    assert SECRETS.redact_json(value) == {"a": ["$KEY", 1, None, True, {"b": "x$KEY"}], "$KEY": 1.5}


def test_names_in_bytes() -> None:
    assert SECRETS.names_in(f"{VALUE}-more".encode()) == ["KEY", "LONGER"]
    assert SECRETS.names_in(b"nothing") == []


@pytest.mark.parametrize("at", [0, 1, 7, 16, 17, 40])
def test_names_in_a_file_that_is_read_in_pieces(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_secrets, "SEARCH_CHUNK_BYTES", 16)
    data = b"x" * at + VALUE.encode() + b"x" * 20
    assert SECRETS.names_in_file(io.BytesIO(data)) == ["KEY"]
    assert SECRETS.names_in_file(io.BytesIO(data.replace(b"hunter", b""))) == []
    assert NO_SECRETS.names_in_file(io.BytesIO(data)) == []


def test_a_prompt_without_them() -> None:
    turn = EarlierStep(1, "a", f"said {VALUE}", {"x": VALUE})
    prompt = Prompt("s", f"use {VALUE}", (turn,), "ask", {"name": "n"}, summary=VALUE)
    assert "hunter2" in prompt.text()
    hidden = prompt.redacted(SECRETS)
    assert "hunter2" not in hidden.text()
    assert hidden.correction is None
    assert prompt.redacted(NO_SECRETS) is prompt


def test_a_log_without_them() -> None:
    seen: list[dict[str, Any]] = []
    SECRETS.redacting_log(lambda event, **fields: seen.append(fields))("x", a=VALUE, n=1, none=None)
    assert seen == [{"a": "$KEY", "n": 1, "none": None}]


# -- names --------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "key": {"type": "string", "format": "env", "default": "USUAL"},
        "more": {"type": "array", "items": {"type": "string", "format": "env"}},
        "deep": {"properties": {"er": {"format": "env"}}},
        "plain": {"type": "string"},
    },
}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ["USUAL"]),
        ({"key": "MINE", "plain": "X"}, ["MINE"]),
        ({"more": ["A", "B"], "deep": {"er": "C"}}, ["A", "B", "C", "USUAL"]),
        ({"key": 1, "more": {"x": 1}, "deep": []}, []),
    ],
)
def test_what_a_config_names(config: dict[str, Any], names: list[str]) -> None:
    assert sorted(redaction.variables(SCHEMA, config)) == names


def test_the_built_in_agents_name_theirs() -> None:
    model = {"baseUrl": "x", "model": "m", "apiKeyEnv": "K"}
    assert loader.load("llm").secret_names(model) == {"K"}
    assert loader.load("react").secret_names(model) == {"K"}
    assert loader.load("command").secret_names({"argv": ["x"], "secrets": ["A"]}) == {"A"}
    assert loader.load("hermes").secret_names({"secrets": ["A", "B"]}) == {"A", "B"}
    assert loader.load("cursor").secret_names({"apiKeyEnv": "C"}) == {"C"}


def test_who_starts_a_thread(store: Store) -> None:
    bound = {"a": Binding("command", {"argv": ["x"], "secrets": ["KEY"]}), "b": Binding("gone")}
    hidden = redacting_store(store, bound, {"KEY": VALUE})
    hash = hidden.put_node("content", {"text": VALUE, "artifacts": []}).hash
    assert store.node(hash).payload["text"] == "$KEY"
    plain = redacting_store(store, bound, {})
    assert store.node(plain.put_node("content", {"text": VALUE, "artifacts": []}).hash)


# -- a guarded store ----------------------------------------------------------------------


def test_what_is_put_is_hidden_before_it_is_hashed(store: Store) -> None:
    guarded = redaction.redacting_store(store, SECRETS)
    assert store.get(guarded.put(f"a {VALUE}".encode()).hash) == b"a $KEY"
    with guarded.batch() as batch:
        blob = batch.put(VALUE.encode())
        node = batch.put_node("content", {"text": VALUE, "artifacts": [blob.hash]})
    assert store.node(node.hash).payload == {"text": "$KEY", "artifacts": [blob.hash]}
    assert redaction.redacting_store(store, SECRETS) is not store


def test_a_store_that_hides_more(store: Store) -> None:
    guarded = redaction.redacting_store(
        redaction.redacting_store(store, SECRETS), Secrets({"OTHER": "another-one"})
    )
    assert store.get(guarded.put(f"{VALUE} another-one".encode()).hash) == b"$KEY $OTHER"
    assert redaction.secrets_of(guarded).redact(VALUE) == "$KEY"
    assert redaction.secrets_of(store) is NO_SECRETS


def test_a_record_is_hidden_and_its_writer_knows(store: Store) -> None:
    guarded = redaction.redacting_store(store, SECRETS)
    hash = store.put(b"x").hash
    first = Head(hash, {"reason": "none"})
    with guarded.batch() as batch:
        batch.swap("notes/x", None, first)
    with guarded.batch() as batch:
        moved = batch.move("notes/x", first, hash, {"reason": VALUE})
    assert store.heads.get("notes/x") == moved
    assert moved.record == {"reason": "$KEY"}
    with pytest.raises(Conflict), guarded.batch() as batch:
        batch.move("notes/x", first, hash, {})


# -- files --------------------------------------------------------------------------------


def test_files_that_have_one(disk_store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "old").write_text(VALUE)
    (folder / "clean").write_text("x")

    def root() -> str:
        with disk_store.batch() as batch:
            return walker.snapshot(batch, folder, IgnoreRules()).node.hash

    before = root()
    (folder / "old").chmod(0o755)  # not its content
    (folder / "clean").write_text("y")
    (folder / "sub/.env").write_text(f"KEY={VALUE}\n")
    (folder / "link").symlink_to("old")
    after = root()
    assert list(redaction.files_with_secrets(disk_store, SECRETS, before, after)) == [
        ("sub/.env", ["KEY"])
    ]
    assert list(redaction.files_with_secrets(disk_store, NO_SECRETS, before, after)) == []
    assert [path for path, _ in redaction.files_with_secrets(disk_store, SECRETS, None, after)] == [
        "old",
        "sub/.env",
    ]


# -- a whole thread -----------------------------------------------------------------------

TWO = workflow([rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")], a=None, b=None)
TOKEN, API = "tok-0123456789-abcdef", "sk-9876543210-fedcba"


def test_no_key_is_left_anywhere(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that prints its key and writes it, a model that repeats what it saw, a task
    that holds it, and at last an error that does."""
    root = disk_store.root
    (tmp_path / "project").mkdir()
    (tmp_path / "project/.env").write_text(f"TOKEN={TOKEN}\n")
    with disk_store.batch() as batch:
        workspace = walker.snapshot(batch, tmp_path / "project", IgnoreRules()).node.hash
    workflows.add(disk_store, TWO)
    monkeypatch.setenv("TOKEN", TOKEN)
    monkeypatch.setenv("API", API)
    script = (
        'cat; echo "$TOKEN" "$API"; echo "$API" >&2; echo "{\\"x\\": \\"$TOKEN\\"}" >found\n'
        'printf \'```json\\n{"token": "%s"}\\n```\\n\' "$TOKEN"'
    )
    talk = [
        tool_calls(("run_command", json.dumps({"command": f"echo {API}"})), ("list_dir", "{}")),
        tool_calls(("cas_put", json.dumps({"text": API}))),
        text(f"It is {API}.\n```json\n{json.dumps({'key': API})}\n```"),
    ]
    with served(*talk) as model, daemon(root):
        config = {"baseUrl": model.url, "model": "m", "apiKeyEnv": "API", "allowShell": True}
        bound = {
            "a": {"name": "command", "config": {**shell(script), "secrets": ["TOKEN"]}},
            "b": {"name": "react", "config": config},
        }
        made = daemon_socket.request(
            root,
            "start",
            workflow="sample",
            input=f"Use {TOKEN} and {API}.",
            agents=bound,
            workspace=workspace,
        )
        done = daemon_socket.request(root, "wait", id=made["id"])
        fails = {**bound, "a": {"name": "command", "config": shell('echo "$API" >&2; exit 1')}}
        bad = daemon_socket.request(root, "start", workflow="sample", input="Go.", agents=fails)
        daemon_socket.request(root, "wait", id=bad["id"])
    thread = threads.get(disk_store, made["id"])
    assert done["status"] == ENDED
    assert model.headers[0]["authorization"] == f"Bearer {API}"
    assert API not in json.dumps(model.asked[0])
    steps = [node.payload for node in threads.backwards(disk_store, thread)][::-1]
    assert steps[0]["meta"] == {"token": "$TOKEN"}
    assert steps[1]["meta"] == {"key": "$API"}
    assert b"$TOKEN" in disk_store.get(steps[0]["changes"])
    failed = threads.get(disk_store, bad["id"])
    assert failed.status == SUSPENDED
    assert "$API" in failed.record["reason"]
    files = (f'{{"x": "{TOKEN}"}}\n'.encode(), f"TOKEN={TOKEN}\n".encode())
    for _, hash, _ in disk_store.blobs.iterate():
        data = disk_store.get(hash)
        assert API.encode() not in data
        assert TOKEN.encode() not in data or data in files
    for path in root.rglob("*"):
        assert not path.is_file() or API.encode() not in path.read_bytes(), path
    for name, head in disk_store.heads.list():
        assert TOKEN not in f"{name} {head.record}"
        assert API not in f"{name} {head.record}"
    logs = "".join(path.read_text() for path in (root / "log").iterdir())
    assert API not in logs
    assert TOKEN not in logs
    warnings = [json.loads(line) for line in logs.splitlines() if "secret in workspace" in line]
    named = [(one["index"], one["path"], one["variables"]) for one in warnings]
    assert named == [(1, ".env", "TOKEN"), (1, "found", "TOKEN")]


async def test_no_part_of_one_is_left_where_a_text_is_cut(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of a failure is the end of its stderr."""
    monkeypatch.setenv("API", API)
    script = "printf '%s%290s' \"$API\" x | tr ' ' x >&2; exit 1"
    config = {**shell(script), "secrets": ["API"]}
    suspended = await carry_on(disk_store, begin(disk_store, ONE, {"a": config}))
    assert suspended.status == SUSPENDED
    said = [
        str(suspended.record),
        *(str(disk_store.get(hash)) for hash in suspended.record["attempts"]),
    ]
    assert not [text for text in said if API[-8:] in text or API[:8] in text]


async def test_no_part_of_one_is_left_where_a_result_is_cut(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Toolbox(
        context(store, workspace=tmp_path, secrets=Secrets({"API": API})),
        Settings(allow_shell=True),
    )
    (tmp_path / "long").write_text("needle" + "x" * 284 + API + "\n")
    (tmp_path / "more").write_text("x" * 7990 + API + "x" * 16_000)
    for name, arguments in (
        ("search", {"text": "needle"}),
        ("run_command", {"command": "cat more"}),
    ):
        tool = [tools.TOOLS[name]]
        said = await tools.call_tool(bench, tool, name, json.dumps(arguments))
        assert API[:8] not in said
        assert "xx" in said


async def test_what_a_step_puts_itself(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API", API)
    (tmp_path / "d").mkdir()
    script = """
        echo "key $API" | casfs put -
        printf '{"text": "key %s", "artifacts": []}' "$API" | casfs node put content -
        casfs checkpoint create mine "$1" -m "key $API"
        printf '%s\\n' '```json' '{}' '```'"""
    config = {**shell(script, str(tmp_path / "d")), "secrets": ["API"]}
    done = await carry_on(disk_store, begin(disk_store, ONE, {"a": config}))
    assert done.status == ENDED, done.record
    data = [disk_store.get(hash) for _, hash, _ in disk_store.blobs.iterate()]
    assert b"key $API\n" in data
    ((_, head),) = disk_store.heads.list("checkpoints/mine/")
    assert head.record["message"] == "key $API"
    assert not [one for one in data if API.encode() in one]
