"""Export and import: equal content is an equal file, and a bad file changes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from casfs.backend.derived import repairable
from casfs.backend.protocols import Head
from casfs.checkpoints import checkpoint
from casfs.digest import hash_bytes
from casfs.errors import Conflict, NotFound, Refused
from casfs.maintenance import archive, fsck, names
from casfs.maintenance.blob_check import detect_type
from casfs.store import graph
from casfs.store.store import Store
from casfs.threads import threads
from tests.support.archives import ID, members, refused, state
from tests.support.helpers import ABSENT, LARGE, blobs, put_tree, set_head
from tests.support.maintenance import NOTE, SECOND, content, export, fill, put_checkpoint

# -- the file --------------------------------------------------------------------------------


def test_the_same_content_is_the_same_file(source: Store, exported: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    export(source, again, "work", ID)
    assert again.read_bytes() == exported.read_bytes()


def test_the_order_of_arrival_does_not_matter(
    source: Store, exported: Path, tmp_path: Path, target: Store
) -> None:
    put_tree(target, {"dir": {}, "other": b"other"})
    put_checkpoint(target, {"file": LARGE + b"!", "small": b"x", "dir": {}})
    content(target, "drei ☃")
    fill_without_checkpoint(target)
    assert [hash for _, hash, _ in target.blobs.iterate()] != [
        h for _, h, _ in source.blobs.iterate()
    ]
    export(target, tmp_path / "other", ID, "work")
    assert (tmp_path / "other").read_bytes() == exported.read_bytes()


def fill_without_checkpoint(store: Store) -> None:
    head = next(store.heads.list("checkpoints/"))
    fill(store)
    assert [head] == list(store.heads.list("checkpoints/"))


def test_what_came_by_import_goes_out_the_same(
    exported: Path, target: Store, tmp_path: Path
) -> None:
    archive.load(target, exported)
    export(target, tmp_path / "again", ID, "work")
    assert (tmp_path / "again").read_bytes() == exported.read_bytes()


def test_tar_lists_it(source: Store, exported: Path) -> None:
    listed = subprocess.run(["tar", "tvf", exported], capture_output=True, text=True, check=True)
    assert listed.stderr == ""
    listing = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert (listing[0], listing[-1]) == ("manifest.json", "end.json")
    _, heads = names.roots(source, [ID, "work"])
    closure = set(graph.walk(source, [head.hash for _, head in heads]))
    assert {name.partition("/")[2] for name in listing[1:-1]} == closure
    assert all(line.startswith("-r--r--r--") for line in listed.stdout.splitlines())
    for name, data in members(exported)[1:-1]:
        assert (
            name
            == f"{'blobs' if detect_type(source, data) is None else 'nodes'}/{hash_bytes(data)}"
        )


def test_what_a_node_refers_to_comes_before_it(source: Store, exported: Path) -> None:
    seen: set[str] = set()
    for name, _ in members(exported)[1:-1]:
        hash = name.partition("/")[2]
        assert set(graph.refs(source, hash)) <= seen
        seen.add(hash)


def test_compressed(source: Store, exported: Path, target: Store, tmp_path: Path) -> None:
    small, again = tmp_path / "x.tar.zst", tmp_path / "y.tar.zst"
    export(source, small, ID, "work", zstd=True)
    export(source, again, ID, "work", zstd=True)
    assert small.read_bytes() == again.read_bytes()
    assert small.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    assert small.stat().st_size < exported.stat().st_size / 2
    done = archive.load(target, small)
    assert f"threads/{ID}" in done.heads


def test_a_compressed_file_may_have_any_name(source: Store, target: Store, tmp_path: Path) -> None:
    export(source, tmp_path / "no-suffix", ID, zstd=True)
    assert archive.load(target, tmp_path / "no-suffix").members


def test_an_export_of_damage_fails(source: Store, tmp_path: Path) -> None:
    lost = threads.get(source, ID).hash
    inner = source.node(lost).payload["lastStep"]
    repairable(source.blobs).quarantine(inner)
    with pytest.raises(NotFound, match=inner):
        export(source, tmp_path / "x", ID)


def test_a_root_that_is_named_twice_is_written_once(source: Store, tmp_path: Path) -> None:
    export(source, tmp_path / "once", ID, "work")
    export(source, tmp_path / "twice", ID, "work", f"threads/{ID}", "work", "schemas/note")
    assert (tmp_path / "twice").read_bytes() == (tmp_path / "once").read_bytes()


def test_a_message_that_looks_like_a_hash(source: Store, target: Store, tmp_path: Path) -> None:
    put_checkpoint(source, {"f": b"x"}, "other", message=ABSENT)
    export(source, tmp_path / "x", "other")
    archive.load(target, tmp_path / "x")
    assert checkpoint.find(target, "other").message == ABSENT


# -- what a root is --------------------------------------------------------------------------


def test_roots_by_their_names(source: Store) -> None:
    head = source.heads.get(f"threads/{ID}")
    work = checkpoint.find(source, "work")
    name = f"checkpoints/work/{work.id}"
    note = ("schemas/note", source.heads.get("schemas/note"))
    for text, wanted in {
        ID: f"threads/{ID}",
        ID.lower(): f"threads/{ID}",
        ID[:9]: f"threads/{ID}",
        f"threads/{ID}": f"threads/{ID}",
        "work": name,
        f"work@{work.id}": name,
        f"work@{work.id[:9]}": name,
        name: name,
        "demo": "workflows/demo",
    }.items():
        assert names.roots(source, [text]) == ([], [(wanted, source.heads.get(wanted)), note])
    assert head is not None
    for text in (head.hash, head.hash[:12]):
        assert names.roots(source, [text]) == ([head.hash], [note])


@pytest.mark.parametrize("text", ["", "nothing", ABSENT, ABSENT[:12], "work@2019", "a/b", "@", "/"])
def test_a_root_that_is_nothing(source: Store, text: str) -> None:
    with pytest.raises(NotFound):
        names.roots(source, [text])


def test_a_root_that_is_two_things(source: Store) -> None:
    set_head(source, "workflows/work", source.heads.get("workflows/demo").hash)  # type: ignore[union-attr]
    with pytest.raises(Conflict, match="ambiguous"):
        names.roots(source, ["work"])
    assert len(names.roots(source, ["workflows/work"])[1]) == 2


def test_a_running_thread_does_not_travel(source: Store, tmp_path: Path) -> None:
    step = threads.steps(source, threads.get(source, ID))[0].hash
    name, record = f"threads/{SECOND}", threads.get(source, ID).record
    set_head(source, name, step, **{**record, "status": "running"})
    with pytest.raises(Refused, match="running"):
        names.roots(source, [SECOND])
    set_head(source, name, step, **{**record, "status": "suspended"})
    assert names.roots(source, [SECOND])[1][0][0] == name


def test_cache_does_not_travel(source: Store) -> None:
    set_head(source, "actions/a", source.put(b"x").hash, createdAt=1)
    with pytest.raises(Refused, match="actions/a"):
        names.roots(source, ["actions/a"])


# -- import ----------------------------------------------------------------------------------


def test_everything_arrives(source: Store, exported: Path, target: Store) -> None:
    done = archive.load(target, exported)
    work = f"checkpoints/work/{checkpoint.find(source, 'work').id}"
    assert done.heads == [work, "schemas/note", f"threads/{ID}"]
    for name in done.heads:
        old, marks = source.heads.get(name), {}
        assert old is not None
        if not name.startswith("schemas/"):
            marks = {"origin": "import"}
        if name.startswith("threads/"):
            marks["trusted"] = False
        assert target.heads.get(name) == Head(old.hash, {**old.record, **marks})
    hashes = {name.partition("/")[2] for name, _ in members(exported)[1:-1]}
    assert done.members == len(hashes)
    for hash in hashes:
        assert target.blobs.get(hash) == source.blobs.get(hash)
    assert fsck.check(target).faults == []


def test_importing_again_changes_nothing(exported: Path, target: Store) -> None:
    first = archive.load(target, exported)
    before = state(target)
    again = archive.load(target, exported)
    assert state(target) == before
    assert (again.members, again.new_bytes, again.heads) == (first.members, 0, [])


def test_an_import_into_the_store_it_came_from(source: Store, exported: Path) -> None:
    before = blobs(source), list(source.heads.list())
    assert archive.load(source, exported).heads == []
    assert (blobs(source), list(source.heads.list())) == before


def test_an_incremental_export(source: Store, target: Store, tmp_path: Path) -> None:
    thread = threads.get(source, ID)
    first = threads.steps(source, thread)[0].hash
    export(source, tmp_path / "1", first)
    assert archive.load(target, tmp_path / "1").heads == ["schemas/note"]
    had = blobs(target)
    done = export(source, tmp_path / "2", ID, have=had)
    closure = set(graph.walk(source, [thread.hash]))
    assert {name.partition("/")[2] for name, _ in members(tmp_path / "2")[1:-1]} == closure - had
    assert (done.members, done.skipped) == (len(closure - had), len(closure & had))
    assert archive.load(target, tmp_path / "2").heads == [f"threads/{ID}"]
    assert set(graph.walk(target, [thread.hash])) == closure


def test_an_incremental_export_without_the_rest(
    source: Store, target: Store, tmp_path: Path
) -> None:
    step = threads.steps(source, threads.get(source, ID))[0].hash
    export(source, tmp_path / "x", ID, have=set(graph.walk(source, [step])))
    refused(target, tmp_path / "x")


def test_a_type_travels_with_its_nodes(source: Store, target: Store, exported: Path) -> None:
    archive.load(target, exported)
    assert target.put_node("note", {"text": "made here", "of": hash_bytes(LARGE)})
    assert target.registry.head("note") == source.registry.head("note")
    step = threads.steps(target, threads.get(target, ID))[1].hash
    detail = target.node(step).payload["detail"]
    assert target.node(detail, "note").payload["text"] == "not of a thread"


def test_a_type_that_is_another_here_stays(source: Store, target: Store, exported: Path) -> None:
    with target.batch() as batch:
        batch.put_schema({**NOTE, "description": "another version"})
    mine = target.registry.head("note")
    archive.load(target, exported)
    assert target.registry.head("note") == mine
    assert target.registry.name(source.registry.head("note").hash) == "note"
    assert fsck.check(target).faults == []


def test_a_hash_alone_brings_no_head(source: Store, target: Store, tmp_path: Path) -> None:
    tree = checkpoint.find(source, "work").root
    export(source, tmp_path / "x", tree)
    done = archive.load(target, tmp_path / "x")
    assert done.heads == ["schemas/note"]
    assert target.node(tree, "directory")


def test_a_workflow_travels(source: Store, target: Store, tmp_path: Path) -> None:
    export(source, tmp_path / "x", "demo")
    archive.load(target, tmp_path / "x")
    old = source.heads.get("workflows/demo")
    new = target.heads.get("workflows/demo")
    assert old is not None
    assert new == Head(old.hash, {**old.record, "origin": "import", "trusted": False})


def test_what_a_record_mentions_travels(source: Store, target: Store, tmp_path: Path) -> None:
    thread = threads.get(source, ID)
    attempt = content(source, "a try that failed")
    step = threads.steps(source, thread)[1].hash
    record = {**thread.record, "status": "suspended", "attempts": [attempt]}
    set_head(source, f"threads/{SECOND}", step, **record)
    export(source, tmp_path / "x", SECOND)
    archive.load(target, tmp_path / "x")
    assert target.node(attempt).payload["text"] == "a try that failed"
    assert fsck.check(target).faults == []
