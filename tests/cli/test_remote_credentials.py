"""No credential of a remote is kept or shown: not in the store, its nodes, heads and logs, not in
the bucket, in what commands print, or in settings; nor where commands fail."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.digest import NodeHash
from casfs.object_storage.location import open_storage
from casfs.remotes.log import decode
from casfs.store.store import Store
from tests.support.fault_proxy import FaultProxy, Status
from tests.support.s3_servers import CREDENTIALS, KEY_ID, SECRET, S3Server

TOKEN = "dG9rZW4tb2YtYS1zZXNzaW9u"
WORDS = [KEY_ID, SECRET, TOKEN]


class Casfs:
    """`casfs ARGUMENTS…` as a process. `said`: all that was printed."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.root, self.env, self.said = root, env, ""

    def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        env = {**os.environ, **self.env, "CASFS_STORE": str(self.root), "RUST_LOG": "trace"}
        command = ["casfs", *map(str, arguments)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        self.said += done.stdout + done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


def contents(root: Path) -> Iterator[tuple[str, bytes]]:
    """All that a store holds, plain."""
    for path in root.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()
    with Store.open(root) as store:
        for _, name, _ in store.backend.blobs.iterate():
            yield name, store.backend.blobs.get(NodeHash(name)).data
        for head_name, head in store.backend.heads.list():
            yield head_name, repr(head).encode()
    for path in root.rglob("state.db"):
        with sqlite3.connect(path) as database:
            yield str(path), "\n".join(database.iterdump()).encode()


def assert_clean(what: dict[str, bytes]) -> None:
    assert len(what) > 3
    leaks = [(name, word) for name, data in what.items() for word in WORDS if word.encode() in data]
    assert leaks == []


@pytest.mark.parametrize("source", ["environment", "files"])
def test_no_credential_is_kept_or_shown(
    source: str, seaweedfs: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "files":
        aws = Path.home() / ".aws"
        aws.mkdir()
        keys = f"aws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\n"
        (aws / "credentials").write_text(f"[default]\n{keys}")
    env = CREDENTIALS if source == "environment" else {}
    casfs, url = Casfs(tmp_path / "store", env), seaweedfs.url()
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(30):
        (tree / f"file{number}").write_text(f"content {number}\n" * 100)
    with FaultProxy(seaweedfs.endpoint) as proxy:
        casfs("init")
        casfs("checkpoint", "create", "work", tree)
        casfs("remote", "add", "backup", url, "--endpoint", proxy.endpoint)
        casfs("push", "backup", "work")
        casfs("remote", "list", "--json")
        casfs("remote", "ls", "backup")
        casfs("config", "--json")
        casfs("config")
        clone = Casfs(tmp_path / "clone", env)
        clone("clone", url, clone.root, "--endpoint", proxy.endpoint)
        for fault, code in ((Status(403, error="SignatureDoesNotMatch"), 4), (Status(301), 4)):
            proxy.rule = lambda request, fault=fault: fault
            said = casfs("remote", "ls", "backup", code=code)
            assert said.startswith("casfs: ")
        proxy.rule = lambda request: Status(400, error=f"{KEY_ID}-{SECRET}")
        casfs("push", "backup", "work", code=1)
        proxy.reset()
        expired = Casfs(casfs.root, {**CREDENTIALS, "AWS_SESSION_TOKEN": TOKEN})
        wrong = Casfs(casfs.root, {**CREDENTIALS, "AWS_SECRET_ACCESS_KEY": "other" + SECRET})
        for one in (expired, wrong):
            said = one("pull", "backup", code=4)
            assert "the server refused the credentials" in said
        proxy.down()
        assert "cannot connect" in casfs("pull", "backup", code=1)
    for one in (casfs, clone, expired, wrong):
        assert not [word for word in WORDS if word in one.said]
        assert_clean(dict(contents(one.root)))
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    storage = open_storage(url, endpoint=seaweedfs.endpoint)
    objects = {key: storage.get(key) for key, _ in storage.list("")}
    entry = decode(1, objects["log/0000000000000001"])
    assert_clean({**objects, "the entry": repr(entry).encode()})
    home = [path for path in Path.home().rglob("*") if path.is_file() and ".aws" not in path.parts]
    assert not [path for path in home for word in WORDS if word.encode() in path.read_bytes()]
