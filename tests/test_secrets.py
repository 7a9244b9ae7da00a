"""A new user's project with twelve secrets: none of them leaves, and after a purge none is left.

The order in which the project is recorded, run, purged and pushed does not matter.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from casfs.errors import Purged
from casfs.packs.reader import open_pack
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from tests.support import console_docs, containers
from tests.support.engine import kill
from tests.support.helpers import write_tree
from tests.support.lasting import ROOT_ONLY
from tests.support.served import serving as mounted
from tests.support.web import serving

PAGE = Path(__file__).resolve().parent.parent / "docs/secrets.md"
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]


def github_token(body: str) -> str:
    """A token of GitHub's format: its last six characters are a checksum of the rest."""
    checksum, text = zlib.crc32(body.encode()), ""
    for _ in range(6):
        checksum, digit = divmod(checksum, 62)
        text = BASE62[digit] + text
    return f"ghp_{body}{text}"


def key_block(body: str) -> str:
    return f"-----BEGIN OPENSSH {'PRIVATE KEY'}-----\n{body}\n-----END OPENSSH PRIVATE KEY-----\n"


TOKEN = github_token("q9ZbR4mK7tXw2LpV8sDn5HcJ6fGy3A")
PASSWORD = "Zx81-spectrum-9q7w"
BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz"
NAMED = {
    ".env": f"DATABASE_PASSWORD={PASSWORD}\n",
    ".env.production": "API_SECRET=vk29-Lq83-xx7-production\n",
    "id_ed25519": key_block(BODY + "c2gtZWQyNTUxOQAAACD1"),
    ".netrc": "machine example.org login me password nEtRc-4411-pass\n",
    ".pypirc": "[pypi]\npassword = pYpIrC-5522-pass\n",
    "credentials.json": '{"key": "cReD-6633-json-key"}\n',
}
WITHIN = {
    "settings.py": f'TOKEN = "{TOKEN}"\n',
    "deploy.sh": 'export AWS_SECRET_ACCESS_KEY="wJ4lrXUtnFE3MI/K7MD9NG+bPxRfiCYq8z2kTe5A"\n',
    "notes.md": "the key:\n" + key_block(BODY + "c2gtZWQyNTUxOQAAACD2"),
    "src/config.yaml": 'db_password: "k8Gh2!pQz9Xw4Lm7Rt"\n',
    "src/url.txt": "postgresql://admin:uRl-7744-Pa55w0rd@db.internal:5432/app\n",
    "src/chat.js": 'const t = "xoxb' + '-483920176554-7719204583361-hT7vQ2mZkLx9RbWp4NcYd8Gs";\n',
}
SECRETS = [
    PASSWORD, "vk29-Lq83-xx7-production", "c2gtZWQyNTUxOQAAACD1", "nEtRc-4411-pass",
    "pYpIrC-5522-pass", "cReD-6633-json-key", TOKEN, "wJ4lrXUtnFE3MI/K7MD9NG+bPxRfiCYq8z2kTe5A",
    "c2gtZWQyNTUxOQAAACD2", "k8Gh2!pQz9Xw4Lm7Rt", "uRl-7744-Pa55w0rd",
    "483920176554-7719204583361-hT7vQ2mZkLx9RbWp4NcYd8Gs",
]  # fmt: skip
AGENT = "cat >/dev/null\ncat .env settings.py\necho more >>app.py\necho done\n"


@dataclass
class User:
    """Types commands in a directory, for a store of his own."""

    home: Path
    name: str = "store"

    @property
    def root(self) -> Path:
        return self.home / self.name

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def remote(self) -> Path:
        return self.home / "remote"

    def run(self, *words: str, code: int = 0, stdin: str = "") -> str:
        command = [sys.executable, "-m", "casfs", "--store", str(self.root), *words]
        done = subprocess.run(
            command, cwd=self.home, input=stdin, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def checkpoint(self) -> None:
        self.run("checkpoint", "create", "app", "project")

    def agent(self) -> None:
        self.run("run", "command:sh agent.sh", "Show what is there", "project", "--no-apply")

    def push(self) -> None:
        self.run("push", "origin", "--all", "--sessions", "--yes")

    def purge(self) -> None:
        for secret in SECRETS:
            command = [sys.executable, "-m", "casfs", "--store", str(self.root)]
            subprocess.run(
                [*command, "purge", "--text", "--force", "--why", "leaked"],
                input=secret, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
        self.run("gc")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    found = User(tmp_path)
    for name, text in {**NAMED, **WITHIN, "app.py": "print()\n", "agent.sh": AGENT}.items():
        path = found.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run([*GIT, "init", "-q", str(found.project)], check=True)
    subprocess.run([*GIT, "-C", str(found.project), "add", "app.py", "agent.sh"], check=True)
    found.run("init")
    found.remote.mkdir()
    found.run("remote", "add", "origin", f"file://{found.remote}")
    try:
        yield found
    finally:
        if daemon_socket.runs(found.root):
            found.run("daemon", "stop")


def contents(store: Path) -> bytes:
    """Everything that a store holds, as its readers see it."""
    parts = []
    with Store.open(store) as opened:
        for _, hash, _ in opened.blobs.iterate():
            try:
                parts.append(opened.get(hash))
            except Purged:
                continue
        parts += [str(head.record).encode() for _, head in opened.heads.list()]
    return b"\n".join(parts)


def raw_files(root: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


def remote_contents(root: Path) -> bytes:
    """All members of all packs, beside the files as they are."""
    parts = [raw_files(root)]
    for path in root.rglob("*.pack"):
        pack = open_pack(path)
        for number in range(pack.index.members):
            parts.append(pack.read(number))
    return b"\n".join(parts)


def found_in(data: bytes) -> list[str]:
    return [secret for secret in SECRETS if secret.encode() in data]


def grep(folder: Path) -> list[str]:
    text = b""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            text += path.read_bytes()
    return found_in(text)


def test_no_secret_leaves(user: User) -> None:
    user.checkpoint()
    user.agent()
    user.push()
    assert found_in(remote_contents(user.remote)) == []
    clone = User(user.home, "clone")
    clone.run("clone", f"file://{user.remote}", str(clone.root))
    assert found_in(contents(clone.root)) == []
    assert found_in(raw_files(clone.root)) == []
    clone.run("fsck")
    thread = json.loads(user.run("thread", "list", "--json"))[0]["id"]
    shown = user.run("thread", "log", thread) + user.run("thread", "show", thread, "--json")
    shown += user.run("thread", "diff", thread, "--patch") + user.run("search", "password")
    assert found_in(shown.encode()) == []
    with Store.open(user.root) as store, mounted(store, user.home / "mnt"):
        mount = user.home / "mnt"
        assert (mount / "trees/app/latest/app.py").exists()
        assert grep(mount / "trees/app/latest/") == []
        assert grep(mount / f"threads/{thread}") == []
    with serving(user.root) as web:
        pages = [f"/threads/{thread}", "/", f"/threads/{thread}/steps/1"]
        text = "".join(web.get(page).text for page in pages)
    assert found_in(text.encode()) == []
    # Everything is still here: private files come back.
    user.run("checkpoint", "restore", "app", "again")
    for name, text in {**NAMED, **WITHIN}.items():
        assert (user.home / "again" / name).read_text() == text


@ROOT_ONLY
def test_no_secret_is_in_what_an_agent_prints_of_it(user: User) -> None:
    """However it prints it; `token.txt` is private for what is in it, not for its name."""
    (user.project / "token.txt").write_text(f"{TOKEN}\n")
    (user.project / "agent.sh").write_text(
        "cat >/dev/null\n"
        "python3 -c \"import json; print(json.dumps([chr(10) + open('token.txt').read()]))\"\n"
        "grep --color=always -o 'ghp_.*' token.txt settings.py\n"
        "GREP_COLORS='mt=01;31' grep --color=always ghp_q9 token.txt\n"
        "base64 -w0 token.txt; echo; base64 .env; echo\n"
        "printf 'key is %s' $(cat token.txt) | base64\n"
        "sed 's/^/-/' token.txt; sed 's/^/x%3D/' token.txt\n"
        "printf 'key is ' | cat - .env token.txt | iconv -t UTF-16LE\n"
    )
    user.agent()
    with Store.open(user.root) as store:
        (thread,) = threads.list_threads(store)
        step = threads.step_at(store, thread, 1).payload
        said = store.get(store.node(step["detail"], "command-detail").payload["stdout"])
    assert b"secret:" in said
    assert found_in(said) == []
    assert found_in(re.sub(rb"\x1b[^mK]*[mK]|\0", b"", said)) == []
    for text in (TOKEN, PASSWORD):
        for before in ("", "x", "xx"):
            inside = base64.b64encode((before + text).encode()).decode()[8:-4]
            assert inside.encode() not in said, (text, before)


def test_no_secret_is_in_a_container_that_mounts_a_checkpoint(
    user: User, runtime_dir: Path, tmp_path: Path
) -> None:
    user.checkpoint()
    system = write_tree(tmp_path / "system", containers.a_system())
    with (
        Store.open(user.root) as store,
        mounted(store, user.home / "mnt"),
        containers.ready(containers.Podman, runtime_dir) as podman,
    ):
        shown = {"/src": user.home / "mnt/trees/app/latest"}
        script = "cd /src && find . | sort && find . -type f | xargs cat"
        done = podman(system, script, ro=shown)
    assert done.returncode == 0, done.stderr
    assert "./app.py" in done.stdout.split()
    assert "print()" in done.stdout
    assert found_in(done.stdout.encode()) == []
    assert not any(f"./{name}" in done.stdout.split() for name in NAMED)


ORDERS = [
    "checkpoint agent push purge",
    "checkpoint purge agent push",
    "agent push checkpoint purge",
    "purge checkpoint agent purge push",
    "push agent purge checkpoint purge",
]


@pytest.mark.parametrize("order", ORDERS)
def test_after_a_purge_no_secret_is_left(user: User, order: str) -> None:
    for name in order.split():
        getattr(user, name)()
    if not order.endswith("purge"):
        user.purge()
    assert found_in(contents(user.root)) == []
    assert found_in(raw_files(user.root)) == []
    for secret in SECRETS:
        user.run("grep", "-", code=1, stdin=secret)
    user.run("fsck")
    # What was purged is not recorded again, and says so.
    said = user.run("checkpoint", "create", "app", "project")
    assert ".env: purged" in said
    assert found_in(contents(user.root)) == []
    user.push()
    user.run("remote", "gc", "origin")
    assert found_in(remote_contents(user.remote)) == []
    user.run("checkpoint", "restore", "app", "again")
    assert (user.home / "again/app.py").exists()


def test_the_page(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    os.environ.pop("CASFS_STORE", None)
    for name, content in console_docs.files(text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    try:
        for line, shown in console_docs.commands(text):
            console_docs.run(line, shown, tmp_path)
    finally:
        status = console_docs.run("casfs status --json", "…\n", tmp_path)
        if daemon := json.loads(status)["daemon"]:
            kill(daemon["pid"])
