"""Verbs on the store itself: blobs, nodes, heads, status, config."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

import casfs
from tests.support.cli import DEVELOP, UNKNOWN
from tests.support.engine import (
    Cli,
)


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
    assert cli("put", "-", "--json", stdin=data).json == {"hash": hash, "sizeBytes": len(data)}
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
    shown = cli("status", "--json").json
    assert (shown["store"], shown["version"]) == (str(cli.root), casfs.__version__)
    assert (shown["daemon"], shown["mounts"], shown["serving"]) == (None, [], [])
    assert shown["databaseBytes"] > 0
    lines = cli("status").text.splitlines()
    assert (lines[0], lines[2]) == (f"store   {cli.root}", "daemon  none")
    assert f" in {shown['blobs']} blobs, database " in lines[1]


def test_status_warns_of_a_broken_config(cli: Cli) -> None:
    (cli.root / "config.toml").write_text("[runs\n")
    answer = cli("status")
    assert answer.text.startswith("store ")
    assert "config.toml: not TOML" in answer.err
    assert "not TOML" in cli("status", "--json").json["configFault"]


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
