"""Thirty planted secrets, by every way in, are in no way out."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import zstandard

from casfs.checkpoints import checkpoint
from casfs.digest import TreeHash
from casfs.fuse.views.root import root as mount_root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory, File, Link
from casfs.mcp.reading import Reading
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.support import planted_project, planted_session, readings
from tests.support.engine import Cli, daemon, loop, says
from tests.support.mcp import connected
from tests.support.native import ensure_image
from tests.support.remotes import remote_bytes
from tests.support.web import serving

GITS = ("none", "sha1", "sha256", "split index")
MAX_PAGES = 400
HREF = re.compile(r'href="(/[^"#]*)')
# Prints all that is private as it stands, escaped and coded, then has git keep it in all its ways.
AGENT = """
git init -q 2>/dev/null
git config user.name A; git config user.email a@example.org
for f in $(find . -path ./.git -prune -o -type f -print); do
    echo "== $f"; cat "$f"; echo; base64 -w0 "$f"; echo
done
grep -r --color=always -e key -e assword -e oken . --exclude-dir=.git
python3 -c 'import json, pathlib
for path in pathlib.Path().rglob("*"):
    if path.is_file() and ".git/" not in str(path):
        print(json.dumps({"content": path.read_bytes().decode("utf-8", "replace")}))'
git add -A && git commit -qm 'all of it'
for f in $(find . -path ./.git -prune -o -type f -print); do echo '# more' >>"$f"; done
cp src/alone.txt src/copied.txt
git stash -uq && git stash pop -q
git tag -am 'of all' v1
git add -A && git commit -qm 'more'
git diff HEAD~1
git gc -q --prune=now
"""


class Kept(NamedTuple):
    """A store into which the secrets went by every way."""

    root: Path
    place: Path
    thread: str


def git(place: Path, *arguments: str) -> None:
    owner = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", place, *owner, *arguments], check=True, capture_output=True)


def project(place: Path, kind: str) -> Path:
    planted_project.write(place)
    if kind == "none":
        return place
    algorithm = "sha256" if kind == "sha256" else "sha1"
    git(place.parent, "init", "-q", f"--object-format={algorithm}", str(place))
    git(place, "add", "README.md", "src/work.py")
    git(place, "commit", "-qm", "first")
    if kind == "split index":
        git(place, "update-index", "--split-index")
        (place / "src/work.py").write_text("print(1)\n")
        git(place, "add", "src/work.py")
        git(place, "commit", "-qm", "second")
    return place


@pytest.fixture(params=GITS)
def kept(
    cli: Cli, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Kept:
    place = project(tmp_path / "project", request.param)
    cli("checkpoint", "create", "work", place)
    told = f"as {planted_project.PLANTED['src/alone.txt'].secret}"
    cli("checkpoint", "create", "told", place, "-m", told)
    cli("plugin", "sync", "tool", "1.0", place)
    build = tmp_path / "build"
    build.mkdir()
    monkeypatch.chdir(build)
    copy = ("--input", place, "--output", "copied", "--", "cp", "-r", str(place / "src"), "copied")
    cli("action", "run", "--cache", *copy)
    printing = ("--input", place, "--", "cat", str(place / "src/alone.txt"))
    assert "not cached: its stdout" in cli("action", "run", "--cache", *printing).err
    workspace = tmp_path / "workspace"
    cli("workspace", "open", "work", workspace)
    planted_project.write(workspace)
    cli("workspace", "commit", workspace, "-m", told)
    cli("workspace", "close", workspace)
    agent = "a=command:" + json.dumps(says({}, AGENT))
    with Store.open(cli.root) as store:
        workflows.add(store, loop(2))
    with daemon(cli.root):
        cli("watch", place, "--name", "watched", "--settle", "0s")
        start = ("--input", "Look at it all", "--workspace", place, "--agent", agent, "--json")
        id = cli("thread", "start", loop(2)["name"], *start).json["id"]
        assert daemon_socket.request(cli.root, "wait", id=id)["status"] == "ended"
        cli("watch", "--stop", place)
        planted_session.play(cli.root, place, tmp_path / "home")
    return Kept(cli.root, place, id)


def assert_none(ways: Iterator[tuple[str, bytes]]) -> None:
    leaks = [(way, found) for way, data in ways if (found := planted_project.traces_in(data))]
    assert leaks == []


def in_store(store: Store) -> Iterator[tuple[str, bytes]]:
    """Blobs, git objects in them, and the records of heads."""
    yield from readings.texts(store)
    yield from ((name, json.dumps(dict(head.record)).encode()) for name, head in store.heads.list())


def in_mount(store: Store) -> Iterator[tuple[str, bytes]]:
    """All files and links by any path, each node once."""
    waiting: list[tuple[str, Directory]] = [("", mount_root(StoreReader(store.shown()), Stats()))]
    seen: set[str] = set()
    while waiting:
        path, folder = waiting.pop()
        for text, vnode in folder.entries():
            name = text.decode("utf-8", "replace")
            if isinstance(vnode, Directory):
                key = name if len(name) == 64 else f"{path}/{name}"
                if key not in seen and key.count("/") < 12:
                    seen.add(key)
                    waiting.append((f"{path}/{name}", vnode))
            elif isinstance(vnode, Link):
                yield f"{path}/{name}", vnode.target
            elif isinstance(vnode, File):
                yield f"{path}/{name}", vnode.read(0, vnode.attr().size)


def in_pages(root: Path) -> Iterator[tuple[str, bytes]]:
    """The pages of the dashboard that links lead to."""
    with serving(root) as web:
        waiting, seen = ["/"], {"/"}
        while waiting and len(seen) < MAX_PAGES:
            path = waiting.pop()
            answer = web.ask("GET", path, Cookie=web.cookie)
            yield path, _unpacked(answer.body)
            for found in HREF.findall(answer.body.decode("utf-8", "replace")):
                if found not in seen:
                    seen.add(found)
                    waiting.append(found)


def _unpacked(data: bytes) -> bytes:
    """Returns a page, or the files of a tarball."""
    if not data.startswith(zstandard.FRAME_HEADER):
        return data
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


def in_images(store: Store) -> Iterator[tuple[str, bytes]]:
    """Native images of the work of checkpoints and steps."""
    for made in checkpoint.listing(store):
        yield f"image of {made.name}", ensure_image(store, made.root).read_bytes()
    for thread in threads.list_threads(store):
        for step in threads.backwards(store, thread):
            # A subagent has none of its own.
            if step.payload["workspace"] is not None:
                root = TreeHash(step.payload["workspace"])
                yield f"image of {step.hash}", ensure_image(store, root).read_bytes()


def test_they_are_in_no_way_out(cli: Cli, kept: Kept, tmp_path: Path) -> None:
    with Store.open(kept.root) as store:
        assert_none(in_store(store.shown()))
        assert_none(in_mount(store))
        assert_none(in_images(store))
        output = b"".join(data for _, data in readings.texts(store))
        assert planted_project.ORDINARY.encode() in output
    assert_none(in_pages(kept.root))
    remote = tmp_path / "remote"
    cli("remote", "add", "far", remote.as_uri())
    pushed = cli("push", "far", "--all", "--sessions", "--yes", "--json").json
    assert {one["path"] for one in pushed["private"]} >= set(planted_project.PLANTED)
    assert_none(iter([("remote", remote_bytes(remote))]))
    cli("clone", remote.as_uri(), tmp_path / "clone")
    with Store.open(tmp_path / "clone") as clone:
        assert_none(in_store(clone))
    archived = ("work", "told", "watched", kept.thread, "@last")
    cli("export", "--yes", *archived, "-o", tmp_path / "archive")
    cli("--store", tmp_path / "other", "init")
    cli("--store", tmp_path / "other", "import", tmp_path / "archive")
    with Store.open(tmp_path / "other") as other:
        assert_none(in_store(other))


def test_they_are_here(cli: Cli, kept: Kept, tmp_path: Path) -> None:
    """What stays here is whole: checkpoint, thread and a commit of its agent come back."""
    cli("checkpoint", "restore", "work", tmp_path / "back")
    for name, planted in planted_project.PLANTED.items():
        assert (tmp_path / "back" / name).read_bytes() == planted.content
    cli("checkpoint", "restore", f"{kept.thread}@1", tmp_path / "step")
    cli("checkpoint", "restore", "@last@2.1", tmp_path / "turn")
    for name, planted in planted_project.PLANTED.items():
        assert (tmp_path / "step" / name).read_bytes().startswith(planted.content)
        assert (tmp_path / "turn" / name).read_bytes() == planted.content
    git(tmp_path / "step", "fsck")


async def test_agents_see_none(kept: Kept) -> None:
    with Store.open(kept.root) as store:
        async with connected(Reading(store.shown())) as agent:
            said = [await agent.call("list_checkpoints")]
            for thread in threads.newest_first(store):
                said.append(await agent.call("read_thread", thread=thread.id))
                said.append(await agent.call("context", thread=thread.id))
        assert_none(iter([("MCP", json.dumps(said).encode())]))
