"""Nodes in the mount, as plain vnodes."""

from __future__ import annotations

from casfs.fuse.views.files import BrokenFile
from casfs.fuse.views.nodes import file_name
from casfs.fuse.views.vnode import Directory
from casfs.store.store import Store
from tests.support.fuse import (
    at,
    content,
    damage,
    load,
    missing,
    names,
    read,
    resolve,
    target,
)
from tests.support.thread_example import RULES, Example


def test_a_node(store: Store, thread: Example) -> None:
    node = f"nodes/{thread.workflow}"
    assert names(store, node) == [
        ".node.json", ".type", "description", "moderator.json", "name", "roles", "referrers",
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
        ".node.json", ".type", "directories.json", "files.json", "symlinks.json", "referrers",
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
                ".type": "mine", "referrers": "mine", "x" * 300: "long"},
    )  # fmt: skip
    found = {name: at(store, f"nodes/{node}/{name}") for name in names(store, f"nodes/{node}")}
    assert {name for name in found if not name.startswith("x")} == {
        ".node.json", ".type", "a%2Fb", "n.json", "n%2Ejson", "%2E.", "%25", "%", "%2Etype",
        "%72eferrers", "referrers",
    }  # fmt: skip
    assert content(found["a%2Fb"]) == b"\x00raw"
    assert content(found["n.json"]) == b"1.5\n"
    assert content(found["n%2Ejson"]) == b"text"
    assert content(found[".type"]) == b"odd\n"
    assert all(len(name.encode()) <= 255 for name in found)
    assert content(found["%72eferrers"]) == b"mine"
    assert len(found) == 12


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
