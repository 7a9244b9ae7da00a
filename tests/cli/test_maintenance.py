"""The verbs that keep a store: what they print, their JSON, their exit codes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.derived import repairable, start_gc, total_stored
from casfs.digest import hash_bytes
from casfs.store import Store
from tests.support.engine import Cli
from tests.support.helpers import ABSENT, LARGE, blobs, set_head, write_tree
from tests.support.maintenance import NOTE, SECOND, age, content, ended, fill, fork, put_checkpoint

ID = "01JD0000000000000000000000"
LARGE_HASH = hash_bytes(LARGE)


@pytest.fixture
def opened(cli: Cli) -> Iterator[Store]:
    """The same store, for what no verb does."""
    with Store.open(cli.root) as store:
        yield store


@pytest.fixture
def there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    """The command line on another new store."""
    found = Cli(tmp_path / "there", monkeypatch, capfdbinary)
    found("init")
    return found


def lines(cli: Cli, *arguments: str | Path, code: int = 0) -> list[str]:
    return cli(*arguments, code=code).out.decode().splitlines()


def value(cli: Cli, *arguments: str | Path, code: int = 0) -> Any:
    return json.loads(cli(*arguments, "--json", code=code).out)


# -- list and stats -----------------------------------------------------------------------


def test_list(cli: Cli, opened: Store) -> None:
    made = [content(opened, str(number)) for number in range(7)]
    assert lines(cli, "list", "content") == made
    assert value(cli, "list", "content") == made
    assert lines(cli, "list", "content", "--limit", "3") == made[:3]
    assert lines(cli, "list", "content", "--offset", "5") == made[5:]
    assert lines(cli, "list", "content", "--limit", "2", "--offset", "4") == made[4:6]
    assert value(cli, "list", "content", "--limit", "0") == []
    assert lines(cli, "list", "content", "--offset", "99") == []
    assert lines(cli, "list", "agent") == []


def test_list_has_the_nodes_of_every_version_of_a_type(cli: Cli, opened: Store) -> None:
    made = []
    for version in ("first", "second"):
        with opened.batch() as batch:
            batch.put_schema({**NOTE, "description": version})
        made.append(opened.put_node("note", {"text": version}).hash)
    assert lines(cli, "list", "note") == made
    assert value(cli, "stats")["types"]["note"] == 2


def test_list_of_schemas(cli: Cli) -> None:
    found = lines(cli, "list", "schema")
    assert len(found) == value(cli, "stats")["types"]["schema"] == len(lines(cli, "schema", "list"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nonsense"], 3),
        (["content", "--limit", "-1"], 2),
        (["content", "--offset", "x"], 2),
        ([], 2),
    ],
)
def test_list_of_what_is_not(cli: Cli, arguments: list[str], code: int) -> None:
    cli.refused("list", *arguments, code=code)


def test_stats(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "one", "two")
    opened.put(LARGE)
    found = value(cli, "stats")
    total = total_stored(opened.blobs)
    assert (found["blobs"], found["bytes"], found["files"]) == (total.blobs, total.bytes, 1)
    assert found["heads"] == sum(1 for _ in opened.heads.list())
    assert found["types"]["thread-step"] == len(thread.steps)
    assert found["database_bytes"] > 0
    shown = {line.split()[0]: line.split()[1] for line in lines(cli, "stats")}
    assert shown["blobs"] == str(total.blobs)
    assert shown["thread-step"] == "2"


# -- search -------------------------------------------------------------------------------


def test_search(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "the parser is fixed", "nothing else")
    fork(thread, SECOND, thread.steps[0])
    other = content(opened, "another parser")
    paths = [f"threads/{id}/steps/000001-planner/output.md" for id in (ID, SECOND)]
    assert sorted(lines(cli, "search", "fixed parser")) == sorted(
        f"{path}: the parser is fixed" for path in paths
    )
    assert lines(cli, "search", "another") == [f"nodes/{other}/: another parser"]
    assert lines(cli, "search", "fixed", "--thread", SECOND.lower()) == [
        f"{paths[1]}: the parser is fixed"
    ]
    (found,) = value(cli, "search", "fixed", "--thread", ID, "--type", "content")
    assert found == {
        "hash": opened.node(thread.steps[0]).payload["content"],
        "type": "content",
        "path": paths[0],
        "snippet": "the parser is fixed",
        "thread": ID,
        "step": 1,
        "role": "planner",
    }
    assert len(lines(cli, "search", "parser", "--limit", "1")) == 1
    assert value(cli, "search", "nowhere") == []
    assert lines(cli, "search", "nowhere") == []
    assert lines(cli, "search", '"') == []


def test_search_in_a_thread_that_is_none(cli: Cli, opened: Store) -> None:
    cli.refused("search", "x", "--thread", ID, code=3)
    cli.refused("search", "x", "--limit", "0", code=2)
    cli.refused("search", code=2)


# -- fsck ---------------------------------------------------------------------------------


def spoil(cli: Cli, hash: str) -> None:
    path = cli.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o644)
    path.write_bytes(b"spoilt" + path.read_bytes()[6:])


def test_fsck_of_a_sound_store(cli: Cli, opened: Store) -> None:
    fill(opened)
    total = total_stored(opened.blobs)
    (line,) = lines(cli, "fsck")
    assert line.startswith(f"{total.blobs} blobs, ")
    assert line.endswith(f" {total.bytes} bytes: no faults")
    found = value(cli, "fsck")
    assert (found["faults"], found["repaired"], found["quarantined"]) == ([], [], [])
    assert (found["blobs"], found["bytes"]) == (total.blobs, total.bytes)


def test_fsck_of_a_damaged_store(cli: Cli, opened: Store) -> None:
    head = put_checkpoint(opened, {"f": LARGE})
    spoil(cli, LARGE_HASH)
    told = lines(cli, "fsck", code=1)
    assert told[0] == f"corrupt: blob {LARGE_HASH}: its file does not hash to its name"
    assert told[1:3] == [f"    affects {head}", f"quarantined {LARGE_HASH}"]
    assert told[3].endswith(": 1 fault")
    assert (cli.root / "quarantine" / LARGE_HASH).exists()
    again = value(cli, "fsck", code=1)
    assert [(one["kind"], one["hash"], one["takes"]) for one in again["faults"]] == [
        ("missing", LARGE_HASH, [head])
    ]


def test_fsck_repairs(cli: Cli, opened: Store, tmp_path: Path) -> None:
    put_checkpoint(opened, {"f": LARGE})
    source = write_tree(tmp_path / "source", {"copy": LARGE})
    spoil(cli, LARGE_HASH)
    found = value(cli, "fsck", "--repair-from", source)
    assert (found["repaired"], found["faults"]) == ([LARGE_HASH], [])
    assert found["quarantined"] == [LARGE_HASH]
    spoil(cli, LARGE_HASH)
    told = lines(cli, "fsck", "--repair-from", source)
    assert told[0] == f"repaired {LARGE_HASH}"
    assert told[-1].endswith("no faults")
    assert lines(cli, "fsck")[-1].endswith("no faults")


def test_fsck_repairs_what_it_can(cli: Cli, opened: Store, tmp_path: Path) -> None:
    put_checkpoint(opened, {"f": LARGE, "g": LARGE + b"!"})
    source = write_tree(tmp_path / "source", {"copy": LARGE})
    for hash in (LARGE_HASH, hash_bytes(LARGE + b"!")):
        spoil(cli, hash)
    found = value(cli, "fsck", "--repair-from", source, code=1)
    assert found["repaired"] == [LARGE_HASH]
    assert [one["hash"] for one in found["faults"]] == [hash_bytes(LARGE + b"!")]


def test_fsck_repairs_from_another_store(cli: Cli, there: Cli, opened: Store) -> None:
    put_checkpoint(opened, {"f": LARGE})
    with Store.open(there.root) as store:
        store.put(LARGE)
    spoil(cli, LARGE_HASH)
    assert value(cli, "fsck", "--repair-from", there.root)["repaired"] == [LARGE_HASH]


def test_fsck_from_nowhere(cli: Cli, opened: Store, tmp_path: Path) -> None:
    opened.put(LARGE)
    spoil(cli, LARGE_HASH)
    assert "nowhere" in cli.refused("fsck", "--repair-from", tmp_path / "nowhere", code=3)
    (tmp_path / "file").write_text("x")
    cli.refused("fsck", "--repair-from", tmp_path / "file", code=3)
    assert not (cli.root / "quarantine").exists()


def test_fsck_of_a_database_that_is_none(cli: Cli) -> None:
    for end in ("", "-wal", "-shm"):
        (cli.root / f"store.db{end}").unlink(missing_ok=True)
    (cli.root / "store.db").write_bytes(b"not SQLite " * 1000)
    answer = cli("fsck", code=1)
    assert answer.err.count("\n") == 1
    assert "store.db" in answer.err


# -- gc -----------------------------------------------------------------------------------


def test_gc(cli: Cli, opened: Store) -> None:
    ended(opened, "one")
    kept = total_stored(opened.blobs)
    opened.put(LARGE)
    opened.put(b"small")
    assert lines(cli, "gc")[0].startswith("freed 0 blobs, 0 bytes; kept ")
    age(opened)
    before = blobs(opened)
    dry = value(cli, "gc", "--dry-run")
    said = f"2 blobs, {len(LARGE) + 5} bytes; kept {kept.blobs} blobs, {kept.bytes} bytes"
    assert lines(cli, "gc", "--dry-run") == [f"would free {said}"]
    assert blobs(opened) == before
    assert lines(cli, "gc") == [f"freed {said}"]
    assert dry == {
        "kept": {"blobs": kept.blobs, "bytes": kept.bytes, "files": kept.files},
        "freed": {"blobs": 2, "bytes": len(LARGE) + 5, "files": 1},
        "evicted": [],
        "dry_run": True,
    }
    assert value(cli, "gc")["freed"] == {"blobs": 0, "bytes": 0, "files": 0}
    assert total_stored(opened.blobs) == kept


def test_gc_takes_its_grace_period_from_the_flag_the_environment_or_the_file(
    cli: Cli, opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(opened, 500)
    for choose in ("flag", "environment", "file"):
        hash = opened.put(choose.encode()).hash
        age(opened, 500)
        assert hash in blobs(opened)
        if choose == "flag":
            cli("gc", "--grace", "600")
            assert hash in blobs(opened)
            cli("gc", "--grace", "400")
        elif choose == "environment":
            monkeypatch.setenv("CASFS_GC_GRACE_S", "400")
            cli("gc")
            monkeypatch.delenv("CASFS_GC_GRACE_S")
        else:
            (cli.root / "config.toml").write_text("[gc]\ngrace_s = 400\n")
            cli("gc")
        assert hash not in blobs(opened)


@pytest.mark.parametrize("option", ["--max-size", "--max-inodes"])
def test_gc_evicts_cache_to_a_limit(cli: Cli, opened: Store, option: str) -> None:
    for number in range(3):
        hash = opened.put(bytes([number]) * (200 << 10)).hash
        set_head(opened, f"actions/{number}", hash, usedAt=number)
    age(opened)
    limit = "500K" if option == "--max-size" else "2"
    found = value(cli, "gc", option, limit, "--dry-run")
    assert found["evicted"] == ["actions/0"]
    told = lines(cli, "gc", option, limit)
    assert told[0].startswith("freed 1 blobs, 204800 bytes; ")
    assert told[1:] == ["evicted actions/0"]
    assert value(cli, "gc", option, limit)["evicted"] == []
    assert sorted(value(cli, "gc", option, "0")["evicted"]) == ["actions/1", "actions/2"]


def test_gc_keeps_to_the_limits_of_the_settings(cli: Cli, opened: Store) -> None:
    for number in range(3):
        put_checkpoint(opened, {"f": bytes([number]) * 5000}, at=number)
    age(opened)
    (cli.root / "config.toml").write_text("[gc]\nmax_inodes = 1\n")
    assert value(cli, "gc")["evicted"] == []
    (cli.root / "config.toml").write_text("[gc]\nmax_inodes = 1\nkeep_checkpoints = 2\n")
    assert len(value(cli, "gc")["evicted"]) == 1
    assert len(lines(cli, "checkpoint", "list", "work")) == 2


@pytest.mark.parametrize("size", ["5G", "0", "1", "12K", "3M", "1T"])
def test_sizes(cli: Cli, size: str) -> None:
    cli("gc", "--dry-run", "--max-size", size)


@pytest.mark.parametrize("size", ["", "G", "5g", "5GB", "5 G", "-1", "1.5G", "5KM", "²", "٥", "x"])
def test_sizes_that_are_none(cli: Cli, size: str) -> None:
    assert "size" in cli.refused("gc", f"--max-size={size}", code=2)


@pytest.mark.parametrize("option", ["--grace=-1", "--max-inodes=-1", "--max-inodes=1K", "--grace="])
def test_numbers_that_are_none(cli: Cli, option: str) -> None:
    cli.refused("gc", option, code=2)


def test_gc_says_why(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "one")
    said = opened.node(thread.steps[0]).payload["content"]
    assert lines(cli, "gc", "--why", said) == [
        thread.name,
        f"  {thread.head.hash} thread-end",
        f"  {thread.steps[0]} thread-step",
        f"  {said} content",
    ]
    wanted = [thread.name, thread.head.hash, thread.steps[0], said]
    assert value(cli, "gc", "--why", said[:12]) == wanted
    tree = opened.node(thread.tree).payload["files"][0]["digest"]["hash"]
    assert lines(cli, "gc", "--why", tree)[-1] == f"  {tree} blob"


def test_gc_why_of_what_nothing_reaches(cli: Cli, opened: Store) -> None:
    garbage = opened.put(b"garbage").hash
    assert "no root reaches" in cli.refused("gc", "--why", garbage, code=3)
    cli.refused("gc", "--why", ABSENT, code=3)
    cli.refused("gc", "--why", ABSENT[:10], code=3)
    cli.refused("gc", "--why", "nonsense", code=4)


def test_gc_of_a_damaged_store(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "one")
    opened.put(b"garbage")
    age(opened)
    repairable(opened.blobs).quarantine(thread.steps[0])
    assert "fsck" in cli.refused("gc", code=1)


def test_gc_beside_another(cli: Cli, opened: Store) -> None:
    with start_gc(opened.backend):
        assert "another gc" in cli.refused("gc", code=4)


def test_gc_with_bad_settings(cli: Cli) -> None:
    (cli.root / "config.toml").write_text("[gc]\nmax_size = 'much'\n")
    assert "gc.max_size" in cli.refused("gc", code=4)


# -- export and import --------------------------------------------------------------------


def test_export_and_import(cli: Cli, there: Cli, opened: Store, tmp_path: Path) -> None:
    thread = fill(opened)
    file = tmp_path / "x.tar.zst"
    (line,) = lines(cli, "export", thread.id, "work", "-o", file)
    assert line.split()[0] == str(file)
    told = lines(there, "import", file)
    assert told[0].split()[1] == "members,"
    assert set(told[1:]) == {f"imported {name}" for name in ("schemas/note", thread.name)} | {
        line for line in told if line.startswith("imported checkpoints/work/")
    }
    again = value(there, "import", file)
    assert (again["new_bytes"], again["heads"]) == (0, [])
    assert lines(there, "thread", "list") == lines(cli, "thread", "list")
    assert lines(there, "checkpoint", "list") == lines(cli, "checkpoint", "list")
    found = value(cli, "export", "work", "-o", tmp_path / "y.tar")
    assert found["file"] == str(tmp_path / "y.tar")
    assert found["members"] == len(names(tmp_path / "y.tar")) - 2
    assert not list(tmp_path.glob(".*"))


def test_export_replaces_a_file(cli: Cli, opened: Store, tmp_path: Path) -> None:
    hash = opened.put(b"x").hash
    (tmp_path / "x.tar").write_bytes(b"old")
    cli("export", hash, "-o", tmp_path / "x.tar")
    assert tarfile.is_tarfile(tmp_path / "x.tar")


def names(file: Path) -> list[str]:
    with tarfile.open(file) as tar:
        return tar.getnames()


def test_export_to_stdout_is_the_file_alone(cli: Cli, opened: Store, tmp_path: Path) -> None:
    hash = opened.put(LARGE).hash
    cli("export", hash, "-o", tmp_path / "x.tar")
    out = cli("export", hash, "-o", "-").out
    assert out == (tmp_path / "x.tar").read_bytes()
    assert cli("export", hash, "-o", "-", "--json").out == out
    assert f"blobs/{hash}" in names(tmp_path / "x.tar")


def test_an_incremental_export(cli: Cli, there: Cli, opened: Store, tmp_path: Path) -> None:
    thread = fill(opened)
    cli("export", thread.steps[0], "-o", tmp_path / "1.tar")
    there("import", tmp_path / "1.tar")
    with Store.open(there.root) as store:
        had = blobs(store)
    (tmp_path / "have").write_text("\n".join(sorted(had)) + "\n")
    found = value(cli, "export", thread.id, "-o", tmp_path / "2.tar", "--have", tmp_path / "have")
    assert found["skipped"] > 0
    same = cli("export", thread.id, "-o", "-", "--have", "-", stdin="\n".join(had).encode())
    assert same.out == (tmp_path / "2.tar").read_bytes()
    assert thread.name in value(there, "import", tmp_path / "2.tar")["heads"]


def test_export_of_what_is_not(cli: Cli, opened: Store, tmp_path: Path) -> None:
    fill(opened)
    out = tmp_path / "x.tar"
    for root in (ABSENT, "nothing", "work@2019", ""):
        cli.refused("export", root, "-o", out, code=3)
    set_head(opened, "workflows/work", opened.registry.head("note").hash)
    assert "ambiguous" in cli.refused("export", "work", "-o", out, code=4)
    cli.refused("export", "-o", out, code=2)
    cli.refused("export", "work", code=2)
    (tmp_path / "have").write_text("not hashes")
    cli.refused("export", ID, "-o", out, "--have", tmp_path / "have", code=4)
    cli.refused("export", ID, "-o", out, "--have", tmp_path / "nowhere", code=3)
    assert not out.exists()


def test_a_running_thread_is_refused(cli: Cli, opened: Store, tmp_path: Path) -> None:
    from tests.support.thread_example import make_thread

    make_thread(opened).step("planner", "one")
    assert "running" in cli.refused("export", ID, "-o", tmp_path / "x.tar", code=4)
    assert not (tmp_path / "x.tar").exists()


def test_export_to_where_nothing_can_be_written(cli: Cli, opened: Store, tmp_path: Path) -> None:
    hash = opened.put(LARGE).hash
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    for place in ("nowhere/x.tar", "file/x.tar", "x" * 300):
        told = cli.refused("export", hash, "-o", tmp_path / place, code=1)
        assert told.startswith(f"casfs: cannot write {tmp_path / place}: ")
    folder = tmp_path / "store"
    cli.refused("export", hash, "-o", folder, code=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_export_that_fails_leaves_nothing(cli: Cli, opened: Store, tmp_path: Path) -> None:
    thread = fill(opened)
    repairable(opened.blobs).quarantine(thread.steps[1])
    (tmp_path / "x.tar").write_bytes(b"old")
    told = cli.refused("export", thread.id, "-o", tmp_path / "x.tar", code=3)
    assert thread.steps[1] in told
    assert (tmp_path / "x.tar").read_bytes() == b"old"
    cli.refused("export", thread.id, "-o", tmp_path / "x.tar.zst", code=3)
    assert not list(tmp_path.glob(".*")) + list(tmp_path.glob("*.zst"))


@pytest.mark.parametrize("name", ["x.tar", "x.tar.zst"])
def test_an_export_that_fails_says_so_in_one_line(
    cli: Cli, opened: Store, tmp_path: Path, name: str
) -> None:
    """In a process of its own: what Python says at its end counts too."""
    thread = fill(opened)
    repairable(opened.blobs).quarantine(thread.start)
    argv = [
        sys.executable,
        "-m",
        "casfs",
        "--store",
        str(cli.root),
        "export",
        ID,
        "-o",
        str(tmp_path / name),
    ]
    answer = subprocess.run(argv, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (3, "", 1)


def test_an_export_onto_a_full_disk(cli: Cli, opened: Store) -> None:
    hash = opened.put(LARGE * 9).hash
    with Path("/dev/full").open("wb") as full:
        argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), "export", hash, "-o", "-"]
        answer = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)


def test_import_of_what_is_none(cli: Cli, there: Cli, opened: Store, tmp_path: Path) -> None:
    there.refused("import", tmp_path / "nowhere", code=3)
    there.refused("import", tmp_path, code=1)
    there.refused("import", code=2)
    (tmp_path / "x").write_bytes(b"no tar at all")
    there.refused("import", tmp_path / "x", code=1)
    fill(opened)
    cli("export", ID, "-o", tmp_path / "x.tar")
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[: len(data) // 2])
    assert "cut.tar" in there.refused("import", tmp_path / "cut.tar", code=1)
    with Store.open(there.root) as store:
        ended(store, "something else")
    assert "nothing was imported" in there.refused("import", tmp_path / "x.tar", code=4)


# -- what they share ----------------------------------------------------------------------

VERBS = [
    ["list", "content"],
    ["stats"],
    ["search", "x"],
    ["fsck"],
    ["gc"],
    ["export", "x", "-o", "never.tar"],
    ["import", "x"],
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_without_a_store(cli: Cli, verb: list[str]) -> None:
    shutil.rmtree(cli.root)
    answer = cli(*verb, code=3)
    assert (answer.out, answer.err.count("\n")) == (b"", 1)
    assert "casfs init" in answer.err
    assert not cli.root.exists()


@pytest.mark.parametrize("verb", [["fsck"], ["gc", "--grace", "0"]], ids=lambda verb: verb[0])
def test_on_a_terminal_there_is_a_bar(cli: Cli, opened: Store, verb: list[str]) -> None:
    fill(opened)
    age(opened)
    reader, writer = pty.openpty()
    argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), *verb]
    with os.fdopen(reader, "rb", buffering=0) as terminal:
        answer = subprocess.run(argv, stdout=subprocess.PIPE, stderr=writer, timeout=60)
        os.set_blocking(reader, False)
        shown = terminal.read() or b""
        os.close(writer)
    assert answer.returncode == 0
    assert b"100%" in shown
    assert b"\r" not in answer.stdout
