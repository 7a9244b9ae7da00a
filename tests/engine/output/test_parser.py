"""From an output to the meta: which block counts, and what is said where none does."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.errors import Invalid
from casfs.store.store import Store
from engine.output import blocks, reader
from engine.output.parser import extract, role_schema

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


FENCES = "```json\n"
REPEATED = {
    "opening fences": FENCES * 20_000,
    "two lengths of fences": "`````json\n```\n" * 20_000,
    "a word that does not end": "``` " + "x" * 4_000_000 + "`\n",
    "short words": ("``` " + "x" * 4_000 + "`\n") * 5,
    "tildes": "~~~~~~~~\n~~~\n" * 100_000,
    "tildes of all lengths": "\n".join("~" * (3000 - n) + "x" for n in range(2_900)),
    "blocks": "```json\n{}\n```\n" * 100_000,
    "blocks that do not parse": "```json\n{\n```\n" * 100_000,
    "brackets": "```json\n" + "[" * 1_000_000 + "\n```",
    "equal keys": "```json\n{" + '"a":1,' * 300_000 + '"a":1}\n```',
    "a key twice among many": "```json\n{"
    + ",".join(f'"{n}":1' for n in range(100_000))
    + ',"99999":1}\n```',
    "rules": "---\n" + "--- x\n" * 100_000,
    "blanks": ("---" + " " * 50_000 + "x\n") * 20,
}


@pytest.mark.parametrize("kind", REPEATED)
def test_an_output_that_repeats_itself(kind: str, store: Store) -> None:
    assert fault(REPEATED[kind], store)
    if kind != "opening fences":  # the fence that closes the block closes the first of them
        assert meta(REPEATED[kind] + "\n\n" + BLOCK, store) == DONE


def test_an_output_is_read_from_its_end(store: Store) -> None:
    end = "x\n" * (2 << 20)
    assert meta(f"{FAILED}\n{end}\n{BLOCK}", store) == DONE
    assert fault(f"{BLOCK}\n{end}", store) == "it has no fenced JSON block and no front matter"
    assert fault(f"---\nstatus: done\n---\n{end}", store)
    assert meta(f"---\nstatus: done\n---\n{end[: 1 << 20]}", store) == DONE


def test_many_blocks(store: Store) -> None:
    others = OTHER + "\n"
    assert meta(f"{BLOCK}\n{others * (blocks.MAX_BLOCKS - 1)}", store) == DONE
    assert fault(f"{BLOCK}\n{others * blocks.MAX_BLOCKS}", store)


@pytest.mark.parametrize("length", [60_000, 3_000_000])
def test_an_output_that_takes_long_is_read_in_a_process_that_can_be_killed(
    store: Store, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    schema = role_schema({"name": "s", "properties": {"s": {"pattern": "(?=a)(a|a)*b$"}}})
    block = '```json\n{"s": "%s"}\n```' % ("a" * length)  # minutes of backtracking
    monkeypatch.setattr(reader, "CPU_LIMIT_S", 1)
    with pytest.raises(Invalid, match="cannot be parsed within 1 s of processor time"):
        extract(block, schema, store)


@pytest.mark.parametrize(
    "value", ['!!int ""', "!!bool zz", "!!timestamp x", "!!float x", "!!set x"]
)
def test_a_tag_that_does_not_fit(value: str, store: Store) -> None:
    assert fault(f"---\nstatus: {value}\n---\n", store).startswith("the front matter is not YAML")


def test_long_front_matter(store: Store) -> None:
    text = "a: [" + "x, " * 30_000 + "]"
    assert "longer than 64 KiB" in fault(f"---\n{text}\n---\n", store)


@pytest.mark.parametrize(
    "output", ["Done.", OTHER, "```json\n{broken\n```", "", "---\na: [\n---\n"]
)
def test_the_default_is_the_meta_of_an_output_without_one(output: str, store: Store) -> None:
    schema = role_schema({**DOCUMENT, "default": DONE})
    assert extract(output, schema, store).meta == DONE
    assert extract(FAILED, schema, store).meta == {"status": "failed"}


def test_a_default_does_not_hide_a_wrong_reference(store: Store) -> None:
    schema = role_schema({**DOCUMENT, "default": DONE})
    wrong = BLOCK.replace("}", f', "part": "{"ab" * 32}"}}')
    with pytest.raises(Invalid, match="is not in the store"):
        extract(wrong, schema, store)


@pytest.mark.parametrize("default", [{}, {"status": "other"}, None, 1])
def test_a_default_that_does_not_fit_is_ignored(default: Any, store: Store) -> None:
    with pytest.raises(Invalid, match="no fenced JSON block"):
        extract("Done.", role_schema({**DOCUMENT, "default": default}), store)
