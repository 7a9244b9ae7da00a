"""The JSON Schema Test Suite, 2020-12: a schema that casfs accepts means what the standard says.

A schema that reaches out of itself, or has a keyword that could hide a reference, is refused, with
a reason: see `casfs.store.nodes.schema_dialect`. `format` asserts nothing here but `cas_ref`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath

from casfs.errors import Invalid
from casfs.store.nodes.schema import Schema
from tests.support import suites

FORMATS = PurePosixPath("optional/format")
DESIGN = re.compile(
    r"a schema must be an object"
    r"|the keyword '(unevaluated(Items|Properties)|\$dynamic(Ref|Anchor)|\$anchor|\$id"
    r"|dependencies|contentSchema|unknown-keyword|array_of_schemas)' is not understood"
    r"|only \S+ is understood"
    r"|\$ref '[^']*' leads (out of the schema|to no subschema)"
    r"|is beyond 2\^53-1"
)
REFUSED_GROUPS = {  # of a file; all else is accepted
    "anchor.json": 4,
    "boolean_schema.json": 2,
    "const.json": 1,
    "content.json": 1,
    "defs.json": 1,
    "dynamicRef.json": 20,
    "optional/anchor.json": 1,
    "optional/bignum.json": 2,
    "optional/cross-draft.json": 1,
    "optional/dependencies-compatibility.json": 7,
    "optional/dynamicRef.json": 1,
    "optional/format-assertion.json": 2,
    "optional/id.json": 1,
    "optional/refOfUnknownKeyword.json": 3,
    "optional/unknownKeyword.json": 1,
    "ref.json": 15,
    "refRemote.json": 15,
    "unevaluatedItems.json": 6,
    "unevaluatedProperties.json": 5,
    "vocabulary.json": 2,
}


def test_json_schema_suite() -> None:
    refused: Counter[str] = Counter()
    wrong, unforeseen, checked = [], [], 0
    for path, groups in suites.load(suites.JSON_SCHEMA).items():
        if path.is_relative_to(FORMATS):
            continue
        for group in groups:
            try:
                schema = Schema(group["schema"])
            except Invalid as error:
                reason = str(error)
                unforeseen += [] if DESIGN.search(reason) else [(str(path), reason)]
                refused[str(path)] += 1
                continue
            for test in group["tests"]:
                checked += 1
                if _accepts(schema, test["data"]) != test["valid"]:
                    wrong.append((str(path), group["description"], test["description"]))
    assert wrong == unforeseen == []
    assert refused == REFUSED_GROUPS
    assert checked > 1000


def _accepts(schema: Schema, data: object) -> bool:
    try:
        schema.check(data)
    except Invalid:
        return False
    return True
