"""A value of an `.env` is often a word of a payload's structure, which stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs.agents.payload_structure import redact_texts
from casfs.agents.secrets import Secrets, redacting_store
from casfs.rewind import rewind_files
from casfs.store.nodes import registry
from casfs.store.nodes.registry import compile_schema
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from engine.output import blocks
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory

# Names, kinds and enumerations of our own types, and of what agents report.
WORDS = sorted(
    {name for document in registry.builtin().values() for name in document.get("properties", {})}
    | {"completed", "failed", "Bash", "Write", "command", "file_path", "execute", "claude"}
)


def redacted(schema: dict[str, Any], payload: Any, *words: str) -> Any:
    secrets = Secrets({f"V{n}": word for n, word in enumerate(words)})
    return redact_texts(lambda: schema, payload, secrets.redact_json)


OUTCOME = {
    "type": "object",
    "properties": {
        "status": {"enum": ["completed", "failed"]},
        "completed": {"type": "string"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "additionalProperties": True,
    "$defs": {
        "item": {
            "anyOf": [
                {"const": "completed"},
                {"type": "object", "properties": {"kind": {"const": "completed"}}},
            ]
        }
    },
}


def test_what_the_schema_names_stays() -> None:
    payload = {
        "status": "completed",
        "completed": "it is completed",
        "items": ["completed", {"kind": "completed", "text": "completed"}],
        "free completed": "completed",
    }
    assert redacted(OUTCOME, payload, "completed") == {
        "status": "completed",
        "completed": "it is $V0",
        "items": ["completed", {"kind": "completed", "text": "$V0"}],
        "free $V0": "$V0",
    }


def test_names_that_become_the_same() -> None:
    schema = {"type": "object", "properties": {"first-secret": {"type": "string"}}}
    payload = {"first-secret": "a", "second-secret": "b second-secret"}
    assert redacted(schema, payload, "first-secret", "second-secret") == {
        "first-secret": "a",
        "$V1": "b $V1",
    }


@pytest.mark.parametrize("name", sorted(registry.builtin()))
def test_each_of_our_types_stays_valid(disk_store: Store, name: str) -> None:
    """Whatever words of its schema are secret."""
    document = registry.builtin()[name]
    compile_schema(disk_store.registry.current(name), document)
    payload = dict.fromkeys(document.get("properties", {}), "text")
    assert set(redacted(document, payload, *WORDS)) == set(payload)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("1\n")
    lines = [
        f"{name}_KEY={word}\n" for name, word in zip(map(letters, range(99)), WORDS, strict=False)
    ]
    (folder / ".env").write_text("".join(lines))
    return folder


def letters(number: int) -> str:
    return "".join(chr(65 + number // 26**place % 26) for place in range(2))


def test_a_session_is_recorded_whatever_words_are_private(disk_store: Store, project: Path) -> None:
    followed = OwnSessionDirectory(disk_store, project, None)
    try:
        store = redacting_store(disk_store, Secrets({}, WORDS))
        agent = AttachedAgent(store, project, followed)
        agent.prompt("the text of a workspace")
        agent.run("rm a")
        agent.write("b", "completed\n")
        agent.stop()
        assert [call.tool for call in agent.steps()[0].calls] == ["Bash", "Write"]
        steps = agent.steps()
        plan = rewind_files.plan_last(disk_store, project, steps)
        assert [change.path for change in plan.undone.changed] == [b"b"]
    finally:
        followed.close()


def test_the_blocks_of_an_output_keep_their_names() -> None:
    secrets = Secrets({}, ["status", "completed", "correct-horse"])

    def of_meta(meta: dict[str, Any]) -> Any:
        return redact_texts(lambda: OUTCOME, meta, secrets.redact_json)

    block = '```json\n{"status": "completed", "note": "correct-horse"}\n```'
    output = f"It is completed.\n\n{block}\nAnd a status.\n"
    text = blocks.map_json_blocks(output, secrets.redact, of_meta)
    (_, meta), *_ = blocks.candidates(text)
    assert meta["status"] == "completed"
    assert "correct-horse" not in text
    assert "It is completed" not in text
    assert "a status" not in text
    assert blocks.map_json_blocks(block, str, lambda meta: meta) == block


def test_the_meta_of_a_recorded_step_is_redacted_whole(disk_store: Store) -> None:
    """Of free names nothing is said, so they are no structure."""
    store = redacting_store(disk_store, Secrets({}, ["correct-horse"]))
    meta = {"correct-horse": "the correct-horse", "nested": {"a correct-horse": ["correct-horse"]}}
    recorded: dict[str, Any] = {}
    with store.batch() as batch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "put_node", lambda self, type, payload: recorded.update(payload))
        batch.put_node("thread-step", {"role": "correct-horse", "meta": meta})
    assert "correct-horse" not in json.dumps(recorded["meta"])
    assert recorded["role"] == "correct-horse"
