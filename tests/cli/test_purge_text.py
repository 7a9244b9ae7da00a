"""`casfs purge --text` and `casfs grep`: a text goes from all that has it, nothing else does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from casfs.backend.disk import DiskBackend
from casfs.backend.recompression import MIN_NODES
from casfs.digest import hash_bytes
from casfs.errors import Failed
from casfs.maintenance import cold, gc
from casfs.maintenance.search import Index
from casfs.store import tombstones
from casfs.store.store import Store
from casfs.store.tombstones import MARK
from casfs.system.log import to_file
from casfs.threads import prompts, threads
from tests.cli.test_purge import traces
from tests.support.cli import lines, value
from tests.support.engine import Cli
from tests.support.helpers import put_tree, read_tree, set_head, write_tree
from tests.support.maintenance import age, content
from tests.support.native import ensure_image
from tests.support.thread_example import make_thread

SECRET = 'hunter2-"quoted"-ünïcode-4711'
RAW = SECRET.encode()
LARGE = bytes(900_000) + RAW + bytes(900_000)


def purge_text(cli: Cli, *options: str, text: bytes = RAW, code: int = 0) -> list[str]:
    return cli("purge", "--text", *options, stdin=text + b"\n", code=code).out.decode().splitlines()


@pytest.fixture
def full(cli: Cli, opened: Store, tmp_path: Path) -> Store:
    """A store that has the text in every place that it can have it in."""
    files = {".env": b"A=1\nKEY=" + RAW, "large": LARGE, "f": b"other"}
    files |= {f"many-{number}": b"%d " % number + RAW + bytes(3000) for number in range(80)}
    place = write_tree(tmp_path / "place", files)
    made = cli("checkpoint", "create", "work", place, "-m", f"with {SECRET}", "--json").json
    ensure_image(opened, made["root"])
    thread = make_thread(opened)
    arguments = opened.put_node(
        "content", {"text": json.dumps({"k": SECRET}), "artifacts": []}
    ).hash
    patch = opened.put(b"--- a\n+++ b\n+" + RAW).hash
    hint = content(opened, f"hint {SECRET}")
    thread.step("planner", f"I found {SECRET}", detail=arguments, changes=patch)
    thread.step("planner", "again", prompt={"hash": "0" * 64, "size": 1, "hint": hint})
    thread.move(thread.head.hash, status="suspended", reason=f"why: {SECRET}")
    with opened.batch() as batch:
        for number in range(MIN_NODES + 50):
            words = random.Random(number).choices(["alpha", "beta", SECRET, "gamma"], k=60)
            batch.put_node("content", {"text": " ".join(words), "artifacts": []})
    gc.collect(opened)  # trains dictionaries
    with Index(opened) as index:
        assert list(index.search("hunter2"))
    (cli.root / "spool/aside").mkdir(parents=True)
    (cli.root / "spool/aside/report").write_bytes(b"casfs 1 claude " + RAW + b"\n")
    (cli.root / "live").mkdir(exist_ok=True)
    (cli.root / "live" / ("a" * 32)).write_bytes(b"running\n" + RAW + b"\nmore\n")
    to_file(cli.root / "log" / "daemon.jsonl")("ended", message=f"said {SECRET}")
    (cli.root / "quarantine").mkdir(exist_ok=True)
    (cli.root / "quarantine" / hash_bytes(b"q")).write_bytes(b"damaged " + RAW)
    return opened


def test_it_is_in_no_file_of_the_store(cli: Cli, full: Store, tmp_path: Path) -> None:
    dictionaries = [full.get(head.hash) for _, head in full.heads.list("dictionaries/")]
    assert any(b"hunter2-" in one for one in dictionaries)
    before = {name: head.hash for name, head in full.heads.list()}
    found = lines(cli, "grep", SECRET)
    shown = "\n".join(found)
    for place in ("work@", ":.env, line 2", ":large", "@1, output", "@1, diff", "@1, detail",
                  "@2, prompt", "report of an agent", "live output", "log ", "damaged blob",
                  "record"):  # fmt: skip
        assert place in shown, place
    assert cli("grep", "-", stdin=RAW).out.decode().splitlines() == found
    refused = cli("purge", "--text", stdin=RAW, code=4)
    assert "places have the text; use --force" in refused.err
    assert lines(cli, "grep", SECRET) == found
    cold.pack(full, older_than=0)
    full.close()
    answer = cli("purge", "--text", "--force", "--why", "a key", stdin=RAW)
    assert "still in" not in answer.err
    for form in (RAW, json.dumps(SECRET)[1:-1].encode(), b"hunter2-"):
        assert traces(cli.root, form) == []
    assert cli("grep", SECRET, code=1).out == b""
    assert lines(cli, "fsck")[-1].endswith(": no faults")
    cli("gc")
    assert traces(cli.root, b"hunter2-") == []
    with Store.open(cli.root) as store:
        after = {name: head.hash for name, head in store.heads.list()}
        assert before.items() <= after.items(), "no head has moved"
        for head in store.heads.list("dictionaries/"):
            assert head
        checkpoint = next(iter(store.heads.list("checkpoints/work/")))[1]
        assert checkpoint.record["message"] == f"with {MARK}"
    cli("checkpoint", "restore", "work", tmp_path / "out")
    restored = read_tree(tmp_path / "out")
    assert restored[b".env"] == f"A=1\nKEY={MARK}".encode()
    assert restored[b"large"] == LARGE.replace(RAW, MARK.encode())
    assert restored[b"f"] == b"other"
    assert len(restored) == 83


def test_a_prompt_and_its_steps_stay_readable(cli: Cli, opened: Store) -> None:
    thread = make_thread(opened)
    thread.step("planner", f"I found {SECRET} and more")
    found = threads.get(opened, threads.ThreadId(thread.id))
    text = prompts.of_step(opened, found, threads.step_at(opened, found, 1)).text
    digest = {"hash": hash_bytes(text.encode()), "size": len(text)}
    thread.step("planner", "done", prompt=digest)
    purge_text(cli, "--force")
    found = threads.get(opened, threads.ThreadId(thread.id))
    output = threads.step_at(opened, found, 1).payload["content"]
    assert opened.node(output, "content").payload["text"] == f"I found {MARK} and more"
    prompt = prompts.of_step(opened, found, threads.step_at(opened, found, 2))
    assert prompt.fault == prompts.PURGED
    assert MARK in prompt.text


def test_what_is_recorded_again_stays_purged(cli: Cli, opened: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "place", {"f": RAW})
    cli("checkpoint", "create", "work", place)
    purge_text(cli, "--force")
    (tmp_path / "again").write_bytes(RAW)
    assert cli("put", tmp_path / "again").word == hash_bytes(RAW)
    assert cli("get", hash_bytes(RAW)).out == MARK.encode()
    (listed,) = value(cli, "purge", "--list")
    assert (listed["hash"], listed["bytes"]) == (hash_bytes(RAW), len(RAW))
    allowed = value(cli, "purge", "--allow", hash_bytes(RAW))
    assert allowed == listed
    cli("put", tmp_path / "again")
    assert cli("get", hash_bytes(RAW)).out == RAW
    assert value(cli, "purge", "--list") == []


def test_names_are_reported_and_stay(cli: Cli, opened: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "place", {"hunter2-name": b"x", "link": b"y"})
    cli("checkpoint", "create", "work", place)
    answer = cli("purge", "--text", "--force", stdin=b"hunter2-name")
    assert "a name in a directory, which is not changed" in answer.err
    assert read_tree_of(cli, tmp_path) == {b"hunter2-name": b"x", b"link": b"y"}


def read_tree_of(cli: Cli, tmp_path: Path) -> dict[bytes, object]:
    cli("checkpoint", "restore", "work", tmp_path / "out")
    return read_tree(tmp_path / "out")


def test_the_record_of_a_running_thread_is_left_to_its_daemon(cli: Cli, opened: Store) -> None:
    thread = make_thread(opened)
    thread.move(thread.head.hash, status="running", reason=SECRET)
    answer = cli("purge", "--text", "--force", stdin=RAW)
    assert f"threads/{thread.id}: its record is its daemon's; suspend the thread" in answer.err
    assert opened.heads.get(thread.name) == thread.head  # type: ignore[arg-type]


def test_every_version_of_a_path(cli: Cli, opened: Store, tmp_path: Path) -> None:
    for number in range(3):
        place = write_tree(tmp_path / f"{number}", {"d": {".env": b"KEY=%d" % number}, "f": b"f"})
        cli("checkpoint", "create", f"work{number}", place)
    thread = make_thread(opened)
    thread.tree = put_tree(opened, {"d": {".env": b"KEY=of the step"}})
    thread.step("planner", "done")
    cli("purge", "work1:d/.env", "--all-versions", "--force", "--why", "old keys")
    contents = [b"KEY=0", b"KEY=1", b"KEY=2", b"KEY=of the step"]
    assert {one.hash for one in tombstones.listing(opened)} == set(map(hash_bytes, contents))
    assert traces(cli.root, b"KEY=") == []
    out = cli("checkpoint", "restore", "work2", tmp_path / "out")
    assert "d/.env: purged" in out.err
    assert "(old keys); left out" in out.err
    assert read_tree(tmp_path / "out") == {b"d": {}, b"f": b"f"}
    assert "or all were purged" in cli.refused("purge", "work0:d/.env", "--all-versions", code=3)


def test_the_rest_of_a_version_and_empty_ones(cli: Cli, tmp_path: Path) -> None:
    """What a purge of a text has left is a version, too; an empty file holds nothing to purge."""
    for number, data in enumerate((b"", RAW + b" and the rest\n", b"KEY=2\n")):
        place = write_tree(tmp_path / f"{number}", {"notes": data})
        cli("checkpoint", "create", f"notes{number}", place)
    cli("purge", "--text", "--force", stdin=RAW)
    assert "and the rest" in cli("cat", "notes1:notes").text
    cli("purge", "notes0:notes", "--all-versions", "--force")
    for number in (1, 2):
        cli("cat", f"notes{number}:notes", code=3)
    assert traces(cli.root, b"and the rest") == []


def test_a_dictionary_is_retired_after_a_kill(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of its transactions every node is readable, and gc ends it."""
    backend = full.backend
    assert isinstance(backend, DiskBackend)
    nodes = [hash for _, hash, info in full.blobs.iterate() if info.type is not None]
    before = [full.get(hash) for hash in nodes]
    with monkeypatch.context() as patch:
        patch.setattr(backend.blobs, "purge", lambda *_: (_ for _ in ()).throw(Failed("killed")))
        with pytest.raises(Failed, match="killed"):
            backend.recompression().retire(lambda data: True)
    assert [full.get(hash) for hash in nodes] == before
    age(full)
    gc.collect(full)
    kept = full.blobs.info(nodes).keys()
    for hash, data in zip(nodes, before, strict=True):
        assert hash not in kept or full.get(hash) == data
    assert all(head.record.get("erased") for _, head in full.heads.list("dictionaries/1"))


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (("purge",), b"", 2, "give a HASH"),
        (("purge", "--text", "work"), b"abcd", 2, "give a HASH"),
        (("purge", "--text"), b"abc", 4, "less than 4 characters"),
        (("purge", "--text"), b"nowhere", 3, "nowhere in this store"),
        (("purge", "--text"), b"\xff\xfe\xff\xfe", 4, "not UTF-8"),
        (("purge", "--allow", "0f" * 32), b"", 3, "no blob"),
        (("purge", "0f" * 32, "--all-versions"), b"", 2, "needs REV:PATH"),
        (("grep", ""), b"", 4, "is empty"),
    ],
)
def test_refused(
    cli: Cli, opened: Store, arguments: tuple[str, ...], stdin: bytes, code: int, message: str
) -> None:
    assert message in cli.refused(*arguments, stdin=stdin, code=code)


def test_the_alias_is_the_same(cli: Cli, opened: Store) -> None:
    hash = opened.put(RAW).hash
    assert value(cli, "gc", "--purge", hash, "--dry-run") == value(cli, "purge", hash, "--dry-run")
    set_head(opened, "test/x", hash)
    assert "use --force" in cli.refused("purge", hash, code=4)


def test_a_key_goes_from_each_layout_in_which_a_thread_has_it(cli: Cli, opened: Store) -> None:
    key_lines = [
        "-----BEGIN PRIVATE KEY-----",
        "MIIEvQ+abc/def",
        "ghijk0123456",
        "-----END KEY-----",
    ]
    key, other = "\n".join(key_lines), "-----BEGIN PRIVATE KEY-----\nother\n}\n-----END KEY-----\n"
    patch = "--- /dev/null\n+++ b/key\n@@ -0,0 +1,4 @@\n" + "".join(
        f"+{one}\n" for one in key_lines
    )
    thread = make_thread(opened)
    indented = "".join(f"    {one}\r\n" for one in key_lines)
    files = {"a.json": json.dumps({"key": key}).encode(), "b": indented.encode()}
    files |= {"c": key.encode("utf-16"), "d": other.encode(), "e": b"}\n"}
    tree = put_tree(opened, files)
    changes = opened.put(patch.encode()).hash
    thread.step("planner", f"The key is:\n> {key.replace(chr(10), chr(10) + '> ')}",
                changes=changes, workspace=tree)  # fmt: skip
    found = "\n".join(lines_of(cli, key))
    for where in ("@1:a.json", "@1:b", "@1:c", "@1, output", "@1, diff"):
        assert where in found, where
    assert "@1:d" not in found
    purge_text(cli, "--force", text=key.encode())
    assert lines_of(cli, key, code=1) == []
    opened.purged.recheck()
    assert opened.get(changes).decode() == patch.replace(
        "".join(f"+{one}\n" for one in key_lines), f"+{MARK}\n" * 4
    )
    assert traces(cli.root, b"MIIEvQ") == []
    assert opened.get(hash_bytes(other.encode())) == other.encode()
    assert lines(cli, "fsck")[-1].endswith(": no faults")


def lines_of(cli: Cli, text: str, code: int = 0) -> list[str]:
    return cli("grep", "-", stdin=text.encode(), code=code).out.decode().splitlines()
