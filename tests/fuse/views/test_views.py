"""What the mount shows, as plain objects: no mount, no FUSE library."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from casfs import threads
from casfs.backend.derived import last_use
from casfs.backend.memory import MemoryBlobs
from casfs.backend.protocols import Blob, Head
from casfs.digest import Digest
from casfs.errors import Corrupt
from casfs.fuse.inodes import inode_number
from casfs.fuse.views.files import BrokenFile
from casfs.fuse.views.nodes import file_name
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import LONG_AGO, Directory, File, Link, Vnode
from casfs.nodes import directory
from casfs.nodes.directory import File as FileEntry
from casfs.nodes.directory import Properties, Subdirectory
from casfs.nodes.directory import Symlink as SymlinkEntry
from casfs.store import Store
from tests.support.fuse import at, content, load, missing, names, read, resolve, target, walk
from tests.support.thread_example import RULES, STARTED, TASK, Example, make_thread, put_tree

MS = 1_000_000


def damage(store: Store, hash: str, data: bytes | None) -> None:
    blobs = store.blobs
    assert isinstance(blobs, MemoryBlobs)
    old = blobs.stored.pop(hash)
    if data is not None:
        blobs.stored[hash] = Blob(data, old.type)


# -- the root, blobs ----------------------------------------------------------------------


def test_the_root(store: Store) -> None:
    assert names(store, "") == [
        "README.txt", "blobs", "trees", "threads", "nodes", "workflows", "threads.json", "history",
        ".casfs",
    ]  # fmt: skip
    assert names(store, ".casfs") == ["stats.json", "events"]
    assert read(store, "README.txt").count(b"\n") <= 15
    top = root(StoreReader(store), Stats())
    assert top.fixed
    assert not top.live


def test_stats_say_what_was_asked(store: Store) -> None:
    stats = Stats()
    top = root(StoreReader(store), stats)
    stats.requests["lookup"] += 3
    stats.bytes_served = 17
    vnode = at(store, ".casfs/stats.json", top)
    assert vnode.live
    report = json.loads(content(vnode))
    assert {kind: n for kind, n in report["requests"].items() if n} == {"lookup": 3}
    assert report["bytes_served"] == 17
    assert set(report["cache"]) == {"nodes", "descriptors"}
    length = vnode.attr().size
    stats.requests["lookup"] += 10**9
    assert vnode.attr().size == length


def test_blobs(store: Store) -> None:
    digest = store.put(b"some bytes")
    vnode = at(store, f"blobs/{digest}")
    assert vnode.attr() == (stat.S_IFREG | 0o444, 10, LONG_AGO, 1)
    assert vnode.digest == digest.hash
    assert content(vnode) == b"some bytes"
    assert read(store, f"blobs/{store.put(b'')}") == b""
    assert names(store, "blobs") == []
    assert missing(store, "blobs/" + "00" * 32)
    assert missing(store, "blobs/README")


def test_a_blob_put_later_is_found(store: Store) -> None:
    blobs = at(store, "blobs")
    assert isinstance(blobs, Directory)
    hash = Digest.of(b"later").hash
    assert blobs.lookup(hash.encode()) is None
    store.put(b"later")
    assert blobs.lookup(hash.encode()) is not None


# -- trees --------------------------------------------------------------------------------


def test_a_tree(store: Store) -> None:
    tree = f"trees/{put_tree(store)}"
    vnode = at(store, tree)
    assert isinstance(vnode, Directory)
    assert [name for name, _ in vnode.entries()] == [
        b"empty", b"hello.txt", b"link", b"one", b"run", b"two", b"\xff\xfe",
    ]  # fmt: skip
    assert at(store, f"{tree}/hello.txt").attr() == (stat.S_IFREG | 0o644, 6, LONG_AGO, 1)
    assert at(store, f"{tree}/run").attr().mode == stat.S_IFREG | 0o755
    assert at(store, f"{tree}/empty").attr() == (stat.S_IFDIR | 0o755, 0, LONG_AGO, 1)
    assert target(store, f"{tree}/link") == "hello.txt"
    assert read(store, f"{tree}/two/same") == b"hello\n"
    assert names(store, f"{tree}/empty") == []
    assert missing(store, f"{tree}/nothing")
    assert vnode.fixed
    assert not any(child.live for _, child in walk(vnode))


def test_only_directories_are_trees(store: Store) -> None:
    blob, node = store.put(b"blob"), store.put_node("content", {"text": "", "artifacts": []})
    for name in (blob.hash, node.hash, "00" * 32, "nothing"):
        assert missing(store, f"trees/{name}")


def test_what_was_preserved_is_shown(store: Store) -> None:
    properties = Properties((1_600_000_000, 5), 0o640)
    with store.batch() as batch:
        blob = batch.put(b"x")
        inner = batch.put_node("directory", directory.encode([], properties))
        entries = [
            FileEntry(b"f", blob, executable=True, properties=properties),
            SymlinkEntry(b"l", b"f", properties),
            Subdirectory(b"d", inner),
        ]
        tree = batch.put_node("directory", directory.encode(entries))
    at_that_time = 1_600_000_000_000_000_005
    assert at(store, f"trees/{tree}/f").attr() == (stat.S_IFREG | 0o640, 1, at_that_time, 1)
    assert at(store, f"trees/{tree}/l").attr().mtime_ns == at_that_time
    assert at(store, f"trees/{tree}/d").attr() == (stat.S_IFDIR | 0o640, 0, at_that_time, 1)


def put_checkpoint(store: Store, name: str, id: str, tree: str, created: int) -> None:
    payload = {"root": tree, "previous": None, "name": name, "createdAt": created, "message": "",
               "stats": dict.fromkeys(("files", "bytes", "added", "modified", "deleted"), 0),
               "changed_files": []}  # fmt: skip
    record = {"root": tree, "createdAt": created, "message": ""}
    with store.batch() as batch:
        node = batch.put_node("checkpoint", payload)
        batch.swap(f"checkpoints/{name}/{id}", None, Head(node.hash, record))


def test_looking_into_a_checkpoint_is_a_use_of_it(store: Store) -> None:
    tree = put_tree(store).hash
    ids = ["20250101T000000.000Z-aaaaaaaa", "20250202T000000.000Z-bbbbbbbb"]
    for place, id in enumerate(ids):
        put_checkpoint(store, "ws", id, tree, 5 + place)
    reader = StoreReader(store)
    checkpoints = at(store, "trees/ws", root(reader, Stats()))
    assert isinstance(checkpoints, Directory)
    list(checkpoints.entries())  # a listing is none
    assert checkpoints.lookup(ids[0].encode()) is not None
    reader.note_uses()
    assert last_use(store.heads, f"checkpoints/ws/{ids[0]}") > 0
    assert last_use(store.heads, f"checkpoints/ws/{ids[1]}") == 0


def test_checkpoints(store: Store) -> None:
    tree = put_tree(store).hash
    top = root(StoreReader(store), Stats())
    trees = at(store, "trees", top)
    assert isinstance(trees, Directory)
    assert trees.lookup(b"ws") is None
    put_checkpoint(store, "ws", "20250101T000000.000Z-aaaaaaaa", tree, 5)
    checkpoints = trees.lookup(b"ws")
    assert isinstance(checkpoints, Directory)
    first = checkpoints.attr().mtime_ns
    assert first // MS == 5
    latest = checkpoints.lookup(b"latest")
    assert isinstance(latest, Link)
    assert latest.target == b"20250101T000000.000Z-aaaaaaaa"

    put_checkpoint(store, "ws", "20250202T000000.000Z-bbbbbbbb", tree, 7)
    assert [name for name, _ in checkpoints.entries()] == [
        b"20250101T000000.000Z-aaaaaaaa", b"20250202T000000.000Z-bbbbbbbb", b"latest",
    ]  # fmt: skip
    newer = checkpoints.lookup(b"latest")
    assert isinstance(newer, Link)
    assert newer.target == b"20250202T000000.000Z-bbbbbbbb"
    assert newer.key != latest.key, "a link that moved is another inode"
    assert checkpoints.attr().mtime_ns // MS == 7
    assert not checkpoints.binds(b"latest")
    assert checkpoints.lookup(b"20250303T000000.000Z-cccccccc") is None
    assert [name for name, _ in trees.entries()] == [b"ws"]


def test_a_directory_of_checkpoints_has_another_mtime_when_one_went(store: Store) -> None:
    tree = put_tree(store).hash
    for id in ("1", "2"):
        put_checkpoint(store, "ws", id, tree, 7)
    top = root(StoreReader(store), Stats())
    trees, checkpoints = at(store, "trees", top), at(store, "trees/ws", top)
    before = trees.attr().mtime_ns, checkpoints.attr().mtime_ns
    put_checkpoint(store, "other", "1", tree, 7)
    assert trees.attr().mtime_ns > before[0]
    assert checkpoints.attr().mtime_ns == before[1], "nothing of its own moved"
    with store.batch() as batch:
        batch.swap("checkpoints/ws/1", store.heads.get("checkpoints/ws/1"), None)
    assert checkpoints.attr().mtime_ns > before[1], "within its millisecond"
    with store.batch() as batch:
        batch.swap("checkpoints/ws/2", store.heads.get("checkpoints/ws/2"), None)
    assert isinstance(trees, Directory)
    assert trees.lookup(b"ws") is None
    assert [name for name, _ in trees.entries()] == [b"other"]


def test_inode_keys_in_trees(store: Store) -> None:
    tree = put_tree(store).hash
    put_checkpoint(store, "ws", "1", tree, 1)
    put_checkpoint(store, "ws", "2", tree, 2)
    seen: dict[str, dict[str, Vnode]] = {}
    for where in (f"trees/{tree}", "trees/ws/1", "trees/ws/2"):
        vnode = at(store, where)
        assert isinstance(vnode, Directory)
        seen[where] = dict(walk(vnode))
    first, *others = seen.values()
    for other in others:
        for path, vnode in other.items():
            same = vnode.key == first[path].key
            assert same is not isinstance(vnode, Directory), path
    for paths in seen.values():
        assert len({inode_number(vnode.key) for vnode in paths.values()}) == len(paths)
    assert first["/one/same"].key != first["/two/same"].key, "an overlay would alias them"


def test_an_inode_changes_with_content_and_mode(store: Store) -> None:
    def key(entry: directory.Entry) -> bytes:
        tree = store.put_node("directory", directory.encode([entry]))
        return at(store, f"trees/{tree}/f").key

    one, two = store.put(b"1"), store.put(b"2")
    keys = [
        key(FileEntry(b"f", one)),
        key(FileEntry(b"f", two)),
        key(FileEntry(b"f", one, executable=True)),
        key(FileEntry(b"f", one, properties=Properties((1, 0)))),
        key(SymlinkEntry(b"f", b"1")),
        key(SymlinkEntry(b"f", b"2")),
    ]
    assert len(set(keys)) == len(keys)


def test_damage_in_a_tree_stays_where_it_is(store: Store) -> None:
    tree = put_tree(store).hash
    inner = at(store, f"trees/{tree}/one").digest
    assert inner is not None
    damage(store, inner, None)
    damage(store, Digest.of(b"hello\n").hash, None)
    store = Store(store.backend)  # one that has decoded nothing yet
    top = at(store, f"trees/{tree}")
    assert isinstance(top, Directory)
    assert len(dict(top.entries())) == 7
    one, hello = top.lookup(b"one"), top.lookup(b"hello.txt")
    assert read(store, f"trees/{tree}/run").startswith(b"#!")
    assert isinstance(one, Directory)
    assert isinstance(hello, File)
    with pytest.raises(Corrupt):
        one.lookup(b"same")
    with pytest.raises(Corrupt):
        hello.read(0, 6)


def test_a_size_that_lies_is_an_error_not_a_short_file(store: Store) -> None:
    blob = store.put(b"0123456789")
    for size in (3, 20):
        lie = FileEntry(b"f", Digest(blob.hash, size))
        tree = store.put_node("directory", directory.encode([lie]))
        vnode = at(store, f"trees/{tree}/f")
        assert isinstance(vnode, File)
        with pytest.raises(Corrupt):
            vnode.read(0, 100)
        with pytest.raises(Corrupt):
            vnode.read(1, 1)


# -- nodes --------------------------------------------------------------------------------


@pytest.fixture
def thread(store: Store) -> Example:
    return make_thread(store)


def test_a_node(store: Store, thread: Example) -> None:
    node = f"nodes/{thread.workflow}"
    assert names(store, node) == [
        ".node.json", ".type", "description", "moderator.json", "name", "roles",
    ]  # fmt: skip
    assert read(store, f"{node}/.node.json") == store.get(thread.workflow)
    assert read(store, f"{node}/.type") == b"workflow\n"
    assert read(store, f"{node}/name") == b"demo"
    assert load(store, f"{node}/moderator.json") == RULES
    assert names(store, f"{node}/roles") == ["planner"]
    assert read(store, f"{node}/roles/planner/systemPrompt") == b"Plan."
    assert read(store, f"{node}/roles/planner/schema/.type") == b"role-schema\n"
    assert names(store, "nodes") == []
    assert missing(store, f"nodes/{store.put(b'blob')}")


def test_refs_to_threads_are_links_that_lead_there(store: Store, thread: Example) -> None:
    thread.step("planner", "one")
    second = thread.step("planner", "two", detail=thread.steps[0])
    node = f"nodes/{second}"
    assert target(store, f"{node}/start") == f"../../nodes/{thread.start}"
    assert resolve(store, f"{node}/start").digest == thread.start
    assert resolve(store, f"{node}/previous").digest == thread.steps[0]
    assert names(store, f"{node}/ancestors") == []
    step = f"threads/{thread.id}/steps/000002-planner"
    assert isinstance(at(store, f"{step}/detail"), Directory), "detail is a real directory"
    assert resolve(store, f"{step}/detail/start").digest == thread.start
    third = thread.step("planner", "three", artifacts=[second])
    assert resolve(store, f"nodes/{third}/ancestors/0000").digest == thread.steps[0]
    artifacts = f"threads/{thread.id}/steps/000003-planner/artifacts"
    assert resolve(store, f"{artifacts}/0000").digest == second


def test_what_failed_stands_beside_what_did_not(store: Store, thread: Example) -> None:
    thread.step("planner", "one")
    why = store.put_node("content", {"text": "too late\n", "artifacts": []}).hash
    thread.step("planner", "two", attempts=[why, store.put(b"blob").hash])
    first, second = (f"threads/{thread.id}/steps/{name}-planner" for name in ("000001", "000002"))
    assert missing(store, f"{first}/attempts")
    assert names(store, f"{second}/attempts") == ["0000", "0001"]
    assert read(store, f"{second}/attempts/0000/text") == b"too late\n"
    assert read(store, f"{second}/attempts/0001") == b"blob"


def test_empty_lists_of_refs_are_directories_and_other_lists_are_json(
    store: Store, thread: Example
) -> None:
    node = f"nodes/{thread.step('planner', 'text')}"
    for field in ("ancestors", "childThreads", "attempts"):
        assert names(store, f"{node}/{field}") == []
    assert load(store, f"{node}/compact.json") is None
    assert load(store, f"{node}/index.json") == 1
    assert load(store, f"{node}/meta.json") == {"status": "planned", "phases": []}
    assert read(store, f"{node}/content/text") == b"text"
    assert names(store, f"nodes/{thread.tree}") == [
        ".node.json", ".type", "directories.json", "files.json", "symlinks.json",
    ]  # fmt: skip


def test_a_react_session_is_text_for_grep(store: Store) -> None:
    put = store.put_node
    agent = put("agent", {"package": "react", "version": "", "config": {}}).hash
    said = put("content", {"text": "needle\n", "artifacts": []}).hash
    tokens = {"input": 1, "output": 1}
    turn = put("react-turn", {"input": said, "output": said, "toolCalls": [], "tokens": tokens,
                              "latencyMs": 5}).hash  # fmt: skip
    session = put("react-session", {"agent": agent, "role": "planner", "turns": [turn, turn],
                                    "totalTokens": 2, "durationMs": 5}).hash  # fmt: skip
    assert names(store, f"nodes/{session}/turns") == ["0000", "0001"]
    assert read(store, f"nodes/{session}/turns/0001/input/text") == b"needle\n"


def test_blobs_and_odd_keys_in_nodes(store: Store) -> None:
    document = {"$id": "odd", "type": "object", "additionalProperties": {"anyOf": [
        {"type": "string", "format": "cas_ref"}, {"type": ["number", "string"]}]}}  # fmt: skip
    with store.batch() as batch:
        batch.put_schema(document)
    blob = store.put(b"\x00raw").hash
    node = store.put_node(
        "odd", {"a/b": blob, "n": 1.5, "n.json": "text", "..": "up", "%": "p", "": "none",
                ".type": "mine", "x" * 300: "long"},
    )  # fmt: skip
    found = {name: at(store, f"nodes/{node}/{name}") for name in names(store, f"nodes/{node}")}
    assert {name for name in found if not name.startswith("x")} == {
        ".node.json", ".type", "a%2Fb", "n.json", "n%2Ejson", "%2E.", "%25", "%", "%2Etype",
    }  # fmt: skip
    assert content(found["a%2Fb"]) == b"\x00raw"
    assert content(found["n.json"]) == b"1.5\n"
    assert content(found["n%2Ejson"]) == b"text"
    assert content(found[".type"]) == b"odd\n"
    assert all(len(name.encode()) <= 255 for name in found)
    assert len(found) == 10


def test_file_names_are_harmless_and_unique() -> None:
    texts = ["", ".", "..", "/", "\0", "%", "%2F", "%2E", "a/b", "a%2Fb", ".type", "é" * 200,
             "é" * 199 + "e"]  # fmt: skip
    encoded = [file_name(text) for text in texts]
    assert len(set(encoded)) == len(texts)
    for name in encoded:
        assert name not in (b"", b".", b"..")
        assert not set(name) & set(b"/\0")
        assert len(name) <= 255


def test_a_payload_that_is_no_object(store: Store) -> None:
    with store.batch() as batch:
        batch.put_schema({"$id": "bare", "type": ["array", "string"]})
    listed, text = store.put_node("bare", [1, 2]), store.put_node("bare", "words")
    assert load(store, f"nodes/{listed}/payload.json") == [1, 2]
    assert read(store, f"nodes/{text}/payload") == b"words"


# -- threads ------------------------------------------------------------------------------


def test_a_running_thread(store: Store, thread: Example) -> None:
    where = f"threads/{thread.id}"
    assert names(store, "threads") == [thread.id]
    assert sorted(names(store, where)) == [
        "input.md", "moderator.json", "status", "steps", "thread.json", "workflow",
    ]  # fmt: skip
    assert read(store, f"{where}/status") == b"running\n"
    assert read(store, f"{where}/input.md") == TASK.encode()
    assert load(store, f"{where}/moderator.json") == RULES
    assert resolve(store, f"{where}/workflow").digest == thread.workflow
    about = load(store, f"{where}/thread.json")
    assert (about["id"], about["status"], about["head"]) == (thread.id, "running", thread.start)
    assert (about["workflow"], about["maxRounds"]) == (thread.workflow, 9)
    assert about["record"] == dict(thread.head.record)
    assert at(store, where).attr().mtime_ns // MS == STARTED
    assert names(store, f"{where}/steps") == []
    assert missing(store, f"{where}/end.json")
    assert missing(store, "threads/01JD0000000000000000000009")


def test_a_step(store: Store, thread: Example) -> None:
    diff = store.put(b"--- a\n+++ b\n").hash
    report = store.put(b"artifact").hash
    step = thread.step("plan/ner", "# Plan\nphase one", artifacts=[report], changes=diff)
    where = f"threads/{thread.id}/steps/000001-plan%2Fner"
    assert names(store, f"threads/{thread.id}/steps") == ["000001-plan%2Fner"]
    assert sorted(names(store, where)) == [
        "artifacts", "changes.diff", "detail", "meta.json", "output.md", "step.json", "workspace",
    ]  # fmt: skip
    assert read(store, f"{where}/output.md") == b"# Plan\nphase one"
    assert load(store, f"{where}/step.json") == store.node(step).payload
    assert load(store, f"{where}/meta.json") == {"status": "planned", "phases": []}
    assert read(store, f"{where}/changes.diff") == b"--- a\n+++ b\n"
    assert read(store, f"{where}/artifacts/0000") == b"artifact"
    assert read(store, f"{where}/detail/text") == b"# Plan\nphase one"
    assert resolve(store, f"{where}/workspace").digest == thread.tree
    for path, vnode in walk(at(store, where)):  # type: ignore[arg-type]
        assert not vnode.live, path
        assert vnode.attr().mtime_ns == (STARTED + 1000) * MS, path


def test_a_step_that_changed_nothing_has_no_diff(store: Store, thread: Example) -> None:
    thread.step("planner", "text")
    assert missing(store, f"threads/{thread.id}/steps/000001-planner/changes.diff")


def test_a_thread_that_moves_is_seen_by_objects_that_exist(store: Store, thread: Example) -> None:
    top = root(StoreReader(store), Stats())
    directory = at(store, f"threads/{thread.id}", top)
    steps = at(store, f"threads/{thread.id}/steps", top)
    status = at(store, f"threads/{thread.id}/status", top)
    assert isinstance(steps, Directory)
    for count in (1, 2, 3):
        thread.step("planner", f"text {count}")
        assert len(list(steps.entries())) == count
        assert steps.lookup(b"%06d-planner" % count) is not None
    for name in (b"000004-planner", b"000001-coder", b"1-planner", b"x", b"000000-planner"):
        assert steps.lookup(name) is None
    thread.end()
    directory.refresh()
    steps.refresh()
    assert directory.attr().mtime_ns == steps.attr().mtime_ns
    assert steps.attr().mtime_ns // MS == STARTED + 4000
    assert content(status) == b"ended\n"
    assert load(store, f"threads/{thread.id}/end.json")["returnCode"] == 0
    assert len(list(steps.entries())) == 3


def test_parents_and_children(store: Store) -> None:
    child_id = "01JD0000000000000000000001"
    parent = make_thread(store, children=[child_id])
    with store.batch() as batch:
        record = {**parent.head.record, "parent": parent.id, "children": []}
        batch.swap(f"threads/{child_id}", None, Head(parent.start, record))
    assert names(store, f"threads/{parent.id}/children") == [child_id]
    child = resolve(store, f"threads/{parent.id}/children/{child_id}")
    assert child.key == at(store, f"threads/{child_id}").key
    assert resolve(store, f"threads/{child_id}/parent").key == at(store, f"threads/{parent.id}").key
    assert missing(store, f"threads/{child_id}/children")


def test_more_children_than_a_record_names(store: Store) -> None:
    ids = [f"01JD00000000000000000000{n:02}" for n in range(10, 30)]
    parent = make_thread(store, children=ids[-threads.MAX_CHILDREN :])
    with store.batch() as batch:
        for id in ids:
            record = {**parent.head.record, "parent": parent.id, "children": []}
            batch.swap(f"threads/{id}", None, Head(parent.start, record))
    assert names(store, f"threads/{parent.id}/children") == ids
    first = resolve(store, f"threads/{parent.id}/children/{ids[0]}")
    assert first.key == at(store, f"threads/{ids[0]}").key


def test_whatever_shows_a_thread_has_another_mtime_after_each_move(
    store: Store, thread: Example
) -> None:
    thread.move(thread.start, children=["01JD0000000000000000000001"], intent={"role": "planner"})
    top = root(StoreReader(store), Stats())
    where = f"threads/{thread.id}"
    live = ["threads", "threads.json", "history"]
    live += [where, *(f"{where}/{name}" for name in (
        "status", "thread.json", "steps", "children", "running", "running/role"))]  # fmt: skip
    times: dict[str, list[int]] = {path: [] for path in live}
    for _ in range(3):
        for path in live:
            vnode = at(store, path, top)
            assert vnode.live, path
            times[path] += [vnode.attr().mtime_ns, at(store, path, top).attr().mtime_ns]
        new = Head(thread.head.hash, {**thread.head.record, "reason": str(len(times["threads"]))})
        with store.batch() as batch:  # in the same millisecond, as far as the record says
            batch.swap(thread.name, thread.head, new)
        thread.head = new
    for path, seen in times.items():
        assert seen[0] == seen[1] < seen[2] == seen[3] < seen[4] == seen[5], path


def test_a_long_list_of_refs_is_found_by_name(store: Store) -> None:
    blobs = [store.put(b"%d" % n).hash for n in range(1203)]
    node = store.put_node("content", {"text": "", "artifacts": blobs})
    assert names(store, f"nodes/{node}/artifacts") == [f"{n:04}" for n in range(1203)]
    assert read(store, f"nodes/{node}/artifacts/1202") == b"1202"
    for name in ("1203", "12", "00012", "-001", "+001", "٠٠٠١", "9" * 200, "x"):
        assert missing(store, f"nodes/{node}/artifacts/{name}")
    damage(store, blobs[7], None)
    directory = at(store, f"nodes/{node}/artifacts")
    assert isinstance(directory, Directory)
    assert [n for n, v in directory.entries() if isinstance(v, BrokenFile)] == [b"0007"]


def test_an_object_of_refs_is_found_by_any_key(store: Store) -> None:
    refs_schema = {
        "type": "object",
        "additionalProperties": {"type": "string", "format": "cas_ref"},
    }
    with store.batch() as batch:
        batch.put_schema({"$id": "keyed", "type": "object", "properties": {"refs": refs_schema}})
    keys = ["plain", "a/b", "..", "%41", "", "x" * 300]
    refs = {key: store.put(b"to " + key.encode()).hash for key in keys}
    node = store.put_node("keyed", {"refs": refs})
    for key in keys:
        path = f"nodes/{node}/refs/{file_name(key).decode()}"
        assert read(store, path) == b"to " + key.encode()
    assert sorted(names(store, f"nodes/{node}/refs")) == sorted(
        file_name(key).decode() for key in keys
    )
    for name in ("A", "a%2fb", "x" * 255):
        assert missing(store, f"nodes/{node}/refs/{name}")


def test_a_broken_thread_breaks_only_itself(store: Store, thread: Example) -> None:
    with store.batch() as batch:
        batch.swap("threads/01JD0000000000000000000002", None, Head(thread.start, {}))
    assert len(names(store, "threads")) == 2
    vnode = at(store, "threads/01JD0000000000000000000002")
    assert isinstance(vnode, Directory)
    found = dict(vnode.entries())
    assert isinstance(found[b"input.md"], BrokenFile)
    status = found[b"status"]
    assert content(status) == b"broken\n"
    assert read(store, f"threads/{thread.id}/status") == b"running\n"


def test_a_damaged_output_is_one_broken_file(store: Store, thread: Example) -> None:
    step = thread.step("planner", "text", detail=thread.agent)
    damage(store, store.node(step).payload["content"], b"not json")
    where = at(store, f"threads/{thread.id}/steps/000001-planner")
    assert isinstance(where, Directory)
    found = dict(where.entries())
    assert isinstance(found[b"output.md"], BrokenFile)
    assert [n for n, v in found.items() if isinstance(v, BrokenFile)] == [b"output.md"]
    assert content(found[b"step.json"]) != b""


def test_workflows(store: Store, thread: Example) -> None:
    assert names(store, "workflows") == ["demo"]
    assert resolve(store, "workflows/demo").digest == thread.workflow
    before = at(store, "workflows/demo")
    with store.batch() as batch:
        head = store.heads.get("workflows/demo")
        batch.swap("workflows/demo", head, Head(thread.agent, {}))
    after = at(store, "workflows/demo")
    assert resolve(store, "workflows/demo").digest == thread.agent
    assert after.key != before.key


# -- on disk ------------------------------------------------------------------------------


def test_large_blobs_are_verified_once_and_again_when_they_changed(disk_store: Store) -> None:
    data = bytes(range(256)) * 8192  # 2 MiB
    digest = disk_store.put(data)
    file = at(disk_store, f"blobs/{digest}")
    assert isinstance(file, File)
    assert not file.ready
    file.prepare()
    assert file.ready
    assert file.read(1000, 5000) == data[1000:6000]
    assert file.read(len(data) - 5, 100) == data[-5:]
    assert disk_store.root is not None
    path = Path(disk_store.root) / "objects" / digest.hash[:2] / digest.hash[2:]
    path.chmod(0o644)
    with path.open("r+b") as damaged:
        damaged.seek(1_000_000)
        damaged.write(b"\xff\x00\xff")
    with pytest.raises(Corrupt):
        file.read(0, 10)
    path.write_bytes(data)
    assert file.read(0, 10) == data[:10]
    path.unlink()
    path.write_bytes(data[:-1])
    assert at(disk_store, f"blobs/{digest}").attr().size == len(data)


def test_more_large_blobs_than_descriptors(disk_store: Store) -> None:
    with disk_store.batch() as batch:
        digests = [batch.put(b"%d" % n * 100_000) for n in range(100, 300)]
    top = root(StoreReader(disk_store), Stats())
    files = [at(disk_store, f"blobs/{digest}", top) for digest in digests]
    for _ in range(2):
        for n, file in enumerate(files, start=100):
            assert isinstance(file, File)
            assert file.read(3, 6) == (b"%d" % n) * 2
