"""From an output to the meta: which block counts, and what is said where none does."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store import Store
from engine.output_parser import extract, role_schema

DOCUMENT = {
    "name": "report",
    "type": "object",
    "properties": {
        "status": {"enum": ["done", "failed"]},
        "part": {"type": "string", "format": "cas_ref", "cas_type": "content"},
        "any": {"type": "array", "items": {"type": "string", "format": "cas_ref"}},
        "day": {"type": "string"},
    },
    "required": ["status"],
    "additionalProperties": False,
}
SCHEMA = role_schema(DOCUMENT)
DONE = {"status": "done"}
BLOCK = '```json\n{"status": "done"}\n```'
FAILED = BLOCK.replace("done", "failed")
OTHER = '```json\n{"example": 1}\n```'


def meta(output: str, store: Store) -> Any:
    return extract(output, SCHEMA, store).meta


def fault(output: str, store: Store) -> str:
    with pytest.raises(Invalid) as raised:
        extract(output, SCHEMA, store)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "output",
    [
        BLOCK,
        f"{BLOCK}\n",
        f"\ufeff{BLOCK}",
        f"\ufeff\r\n\n{BLOCK}",
        f"\n \ufeff{BLOCK}",
        "\n\ufeff---\nstatus: done\n---\nAll is well.\n",
        f"\n\n{BLOCK}\n\n",
        f"I looked at it.\n\n{BLOCK}\n\nThat is all, I hope.",
        f"Done.\n\n{BLOCK}\n".replace("\n", "\r\n"),
        f"{FAILED}\nNo, wait.\n{BLOCK}",
        f"{BLOCK}\nFor example:\n{OTHER}",
        f"```python\nprint({{}})\n```\n{BLOCK}\n```\nplain words\n```",
        f"{BLOCK}\n```\n[1, 2]\n```",
        f"{BLOCK}\n```json\n{{broken\n```",
        BLOCK.replace("```", "~~~"),
        BLOCK.replace("```", "`````"),
        BLOCK.replace("json", "JSON"),
        BLOCK.replace("json", "json title=report"),
        BLOCK.replace("json", ""),
        BLOCK.replace("\n", "\n   "),
        "````markdown\n```json\nnot this one\n```\n````\n" + BLOCK,
        '```json\n{"status":\n\n  "done"\n}\n```  ',
        "---\nstatus: done\n---\nI looked at it.",
        "\n---\nstatus: done\n---\n",
        "\ufeff---\r\nstatus: done\r\n---\r\nText.\r\n",
        f"---\nstatus: failed\n---\n{BLOCK}",
        f"---\nstatus: done\n---\n{OTHER}",
    ],
)
def test_found(output: str, store: Store) -> None:
    assert meta(output, store) == DONE


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "it has no fenced JSON block and no front matter"),
        ("All is well.", "it has no fenced JSON block and no front matter"),
        ('{"status": "done"}', "it has no fenced JSON block and no front matter"),
        ("Text.\n\n---\nstatus: done\n---\n", "it has no fenced JSON block and no front matter"),
        ('```json\n{"status": "done"}', "it has no fenced JSON block and no front matter"),
        ("```json\n{status: done}\n```", "the JSON block is not JSON: "),
        ('```json\n{"status": "done", "status": "done"}\n```', "duplicate key 'status'"),
        ('```json\n{"status": "odd"}\n```', "the JSON block does not fit: $.status: "),
        ("```json\n[1]\n```", "the JSON block does not fit: $: must be an object"),
        ('```json\n{"status": "done", "day": 1}\n```', "$.day: "),
        ('```json\n{"status": 1e20}\n```', "$.status: "),
        ('```json\n{"status": "\\ud800"}\n```', "$.status: lone surrogate"),
        ("```json\n" + '{"a":' * 300 + "1" + "}" * 300 + "\n```", "nested deeper than 200"),
        ("---\nstatus: odd\n---\n", "the front matter does not fit: $.status: "),
        ("---\nstatus: [\n---\n", "the front matter is not YAML: "),
        ("---\n---\n", "the front matter does not fit: $: must be an object"),
        ("---\n1: done\n---\n", "$: the key 1 is not a string"),
        ("---\nstatus: .nan\n---\n", "$.status: nan has no JSON form"),
        ("---\na: &a [x]\nb: [*a, *a]\n---\n", "an alias is not accepted"),
        ("---\na: &a [*a]\n---\n", "an alias is not accepted"),
        ("---\nstatus: !!python/object:os.x {}\n---\n", "the front matter is not YAML: "),
        ("---\nstatus: !!int x\n---\n", "the front matter is not YAML: "),
        ("---\na: " + "[" * 800 + "]" * 800 + "\n---\n", "the front matter "),
        # What counts is the last block, however wrong the ones before it are.
        (f'{OTHER}\n```json\n{{"status": "odd"}}\n```', "$.status: "),
        (f"{OTHER}\n```json\n{{broken\n```", "the JSON block is not JSON: "),
    ],
)
def test_not_found(output: str, said: str, store: Store) -> None:
    assert said in fault(output, store)


def test_a_date_in_front_matter_is_a_string(store: Store) -> None:
    output = "---\nstatus: done\nday: 2026-01-31\n---\n"
    assert meta(output, store) == {"status": "done", "day": "2026-01-31"}


def report(**refs: Any) -> str:
    fields = ", ".join(f'"{key}": {value}' for key, value in {"status": '"done"', **refs}.items())
    return f"```json\n{{{fields}}}\n```"


def test_refs_are_listed_once_in_order(store: Store) -> None:
    content = store.put_node("content", {"text": "t", "artifacts": []}).hash
    blob = store.put(b"bytes").hash
    output = report(part=f'"{content}"', any=f'["{blob}", "{content}", "{blob}"]')
    found = extract(output, SCHEMA, store)
    assert set(found.refs) == {content, blob}
    assert len(found.refs) == 2


def test_a_ref_must_be_in_the_store(store: Store) -> None:
    assert f"{'ab' * 32} is not in the store" in fault(report(part=f'"{"ab" * 32}"'), store)


def test_a_ref_must_have_the_type_that_the_schema_names(store: Store) -> None:
    blob, node = store.put(b"bytes").hash, store.put_node("directory", EMPTY).hash
    assert f"{blob} is a blob, and must be a content" in fault(report(part=f'"{blob}"'), store)
    assert f"{node} is a directory, and must be a" in fault(report(part=f'"{node}"'), store)


def test_a_block_with_a_good_ref_wins_over_a_later_one_with_a_made_up_ref(store: Store) -> None:
    content = store.put_node("content", {"text": "t", "artifacts": []}).hash
    good, bad = report(part=f'"{content}"'), report(part=f'"{"ab" * 32}"')
    assert extract(f"{good}\n{bad}", SCHEMA, store).refs == (content,)


def test_a_schema_that_takes_anything_still_gives_an_object(store: Store) -> None:
    takes_all = role_schema({"name": "all"})
    with pytest.raises(Invalid, match="must be an object"):
        extract('```json\n"word"\n```', takes_all, store)
    assert extract("```json\n{}\n```", takes_all, store).meta == {}


EMPTY: dict[str, Any] = {"files": [], "directories": [], "symlinks": []}
