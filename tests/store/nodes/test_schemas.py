"""The built-in schemas: what fits, what does not and why, the refs, and their registration."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store.nodes import node
from casfs.store.nodes.registry import HEADS, builtin
from casfs.store.nodes.schema import Schema, check_document
from casfs.store.store import Store
from tests.support.helpers import LARGE, put_tree
from tests.support.schema_examples import EXAMPLES
from tests.support.schema_payloads import h

DOCUMENTS = builtin()
SCHEMAS = {name: Schema(document) for name, document in DOCUMENTS.items()}
VALID = [(name, n) for name in EXAMPLES for n in range(len(EXAMPLES[name]["valid"]))]
INVALID = [(name, n) for name in EXAMPLES for n in range(len(EXAMPLES[name]["invalid"]))]


def check(name: str, payload: Any) -> None:
    SCHEMAS[name].check(payload)
    if name in node.CHECKS:
        node.CHECKS[name](payload)


def test_every_built_in_schema_has_examples() -> None:
    assert set(EXAMPLES) == set(DOCUMENTS)
    assert next(iter(DOCUMENTS)) == "schema"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_built_in_schema_is_a_document_under_its_name(name: str) -> None:
    assert check_document(DOCUMENTS[name]) == name


@pytest.mark.parametrize(("name", "n"), VALID)
def test_a_valid_example_fits(name: str, n: int) -> None:
    check(name, EXAMPLES[name]["valid"][n])


@pytest.mark.parametrize(("name", "n"), INVALID)
def test_an_invalid_example_is_refused_where_it_is_wrong(name: str, n: int) -> None:
    payload, path = EXAMPLES[name]["invalid"][n]
    with pytest.raises(Invalid) as caught:
        check(name, payload)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_refs_of_the_first_example(name: str) -> None:
    found = SCHEMAS[name].refs(EXAMPLES[name]["valid"][0])
    assert sorted({ref.hash for ref in found}) == EXAMPLES[name]["refs"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_cas_type_names_a_built_in_type(name: str) -> None:
    types = {ref.cas_type for payload in EXAMPLES[name]["valid"] for ref in refs(name, payload)}
    assert types - {None} <= set(DOCUMENTS)


def refs(name: str, payload: Any) -> list[Any]:
    return list(SCHEMAS[name].refs(payload))


def test_init_registers_them_all(disk_store: Store) -> None:
    heads = dict(disk_store.heads.list(HEADS))
    assert set(heads) == {HEADS + name for name in DOCUMENTS}
    assert all(head.record == {"builtin": True} for head in heads.values())
    for name, document in DOCUMENTS.items():
        found = disk_store.node(heads[HEADS + name].hash)
        assert found.payload == document
        assert found.type == "schema"
    meta = heads[HEADS + "schema"].hash
    assert disk_store.get(meta).endswith(b'"type":"schema"}')
    assert disk_store.node(heads[HEADS + "role"].hash).type_hash == meta


class Graph:
    """Puts nodes in place of the example digests, so that closure holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.known: dict[str, str] = {}

    def put(self, type: str, payload: Any, *names: str) -> str:
        hash = self._store.put_node(type, self.filled(payload)).hash
        self.known |= {h(name): hash for name in names}
        return hash

    def blob(self, *names: str) -> None:
        for name in names:
            self.known[h(name)] = self._store.put(name.encode() + LARGE).hash

    def filled(self, value: Any) -> Any:
        """`value` with every example digest replaced by the hash that stands for it."""
        if isinstance(value, dict):
            found = {key: self.filled(item) for key, item in value.items()}
            if found.keys() == {"hash", "size_bytes"}:
                found["size_bytes"] = self._store.blobs.info([found["hash"]])[found["hash"]].size
            return found
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        return self.known.get(value, value) if isinstance(value, str) else value


def example(name: str, n: int = 0) -> Any:
    return EXAMPLES[name]["valid"][n]


def test_a_graph_of_every_type_can_be_put_and_read(store: Store) -> None:
    graph = Graph(store)
    graph.blob("run.sh", "bytes", "arguments", "result", "diff", "stdout", "stderr", "failed try")
    for name in ("src", "root 0", "root 3"):
        graph.known[h(name)] = put_tree(store, {name: b"content"})
    for text in "task output summary prompt answer".split():
        graph.put("content", {"text": text, "artifacts": []}, text)
    for name in ("phase 1", "phase 2", "arguments", "result"):
        graph.put("content", {"text": name, "artifacts": []}, name)
    graph.put("role-schema", example("role-schema"), "planner-meta")
    graph.put("role", example("role"), "planner")
    graph.put("role", {**example("role"), "name": "coder"}, "coder")
    graph.put("workflow", example("workflow"), "develop")
    agent = example("agent")
    for name in ("planner agent", "coder agent", "react agent"):
        graph.put("agent", {**agent, "config": {"for": name}}, name)
    for n in (1, 2):
        graph.put("react-tool-call", {**example("react-tool-call"), "durationMs": n}, f"call {n}")
    for n in (1, 2):
        graph.put("react-turn", {**example("react-turn"), "latencyMs": n}, f"turn {n}")
    graph.put("react-session", example("react-session"), "detail")
    graph.put("command-detail", example("command-detail"))
    for name in ("question", "answer"):
        graph.put("content", {"text": name, "artifacts": []}, name)
    graph.put("content", {"text": "message", "artifacts": []}, "message")
    graph.put("review", example("review"))
    graph.put("human-detail", example("human-detail"))
    graph.put("call-detail", example("call-detail", 1))
    for name in ("tool arguments", "tool result"):
        graph.put("content", {"text": name, "artifacts": []}, name)
    graph.blob("stream")
    for n in (1, 2):
        graph.put("cursor-turn", {**example("cursor-turn"), "index": n}, f"turn {n}")
    graph.put("cursor-detail", example("cursor-detail"))
    for n in (1, 2):
        graph.put("hermes-turn", {**example("hermes-turn"), "index": n}, f"turn {n}")
    graph.put("hermes-detail", example("hermes-detail"))
    graph.put("thread-agents", example("thread-agents"))
    first_start = {**example("thread-start", 1), "agents": {}}
    graph.put("thread-start", first_start, "start")
    first = {**example("thread-step", 1)}
    graph.put("thread-step", first, "step 1", "parent step")
    graph.put("thread-step", {**first, "index": 2, "previous": h("step 1")}, "step 2")
    graph.put("thread-start", example("thread-start"))
    for n in (1, 2):
        end = {**example("thread-end", 1), "returnCode": n}
        graph.put("thread-end", end, f"child end {n}")
    graph.put("thread-step", example("thread-step"), "step 9")
    graph.put("thread-end", example("thread-end"))
    graph.put("directory", example("directory"))
    graph.put("times", {**example("times"), "directories": []}, "times")
    graph.put("times", example("times"))
    graph.put("checkpoint", example("checkpoint"))
    graph.put("action", example("action"), "action")
    graph.put("action-result", example("action-result"))
    types = {store.node(hash).type for _, hash, info in store.blobs.iterate() if info.type}
    assert types == set(EXAMPLES)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name]["refs"]])
def test_an_example_whose_refs_are_not_here_is_refused(store: Store, name: str) -> None:
    with pytest.raises(Invalid, match="not in this store"):
        store.put_node(name, example(name))
