"""Writes `casfs/payloads.py` from the schemas: python -m tests.support.payload_types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from casfs.store.nodes import head_kinds

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "casfs/payloads.py"
HEAD = '''"""The payloads of the built-in node types, for a type checker (`Node.payload`).

Made from `schemas/` by `python -m tests.support.payload_types`; a test compares them.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict

from casfs.digest import BlobHash, NodeHash, ThreadId, TimesHash, TreeHash
'''
TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}
HASHES = {None: "BlobHash", "directory": "TreeHash", "times": "TimesHash"}  # by cas_type


RECORDS = {"Spent": "spent", "Intent": "intent", "ThreadRecord": None}  # by field of the last


def source() -> str:
    parts = [HEAD]
    for name, field in RECORDS.items():
        schema = head_kinds.THREAD if field is None else head_kinds.THREAD["properties"][field]
        parts.append(_record(name, schema))
    for path in sorted((ROOT / "schemas").glob("*.json")):
        parts.append(_definition(json.loads(path.read_text("utf-8"))))
    return "\n\n".join(parts)


def _record(name: str, schema: dict[str, Any]) -> str:
    """The type of a head's record, or of an object in one."""
    lines = [f"class {name}(TypedDict):"]
    for field, inner in schema["properties"].items():
        record = next((one for one, of in RECORDS.items() if of == field), None)
        null = " | None" if "null" in inner.get("type", "") else ""
        form = record + null if record and name == "ThreadRecord" else _type(inner)
        required = field in schema["required"]
        lines.append(f"    {field}: {form if required else f'NotRequired[{form}]'}")
    return "\n".join(lines) + "\n"


def _definition(schema: dict[str, Any]) -> str:
    name = "".join(word.capitalize() for word in schema["$id"].split("-"))
    fields = schema.get("properties", {})
    if schema.get("additionalProperties") is not False:
        return f"{name}: TypeAlias = dict[str, Any]\n"
    lines = [f"class {name}(TypedDict):"]
    for field, inner in fields.items():
        form = _type(inner)
        is_required = field in schema["required"]
        lines.append(f"    {field}: {form if is_required else f'NotRequired[{form}]'}")
    return "\n".join(lines) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if schema.get("format") == "cas_ref":
        hash_type = HASHES.get(schema.get("cas_type"), "NodeHash")
        return f"{hash_type} | None" if "null" in schema["type"] else hash_type
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(dict.fromkeys(type(one).__name__ for one in values))
    kind = schema.get("type")
    if schema.get("pattern") == f"^{head_kinds.THREAD_ID}$":
        return "ThreadId | None" if "null" in kind else "ThreadId"
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}) for one in kind)
    if kind == "array":
        return f"list[{_type(schema.get('items', {}))}]"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return f"dict[str, {_type(values)}]"
    return TYPES.get(kind, "Any")


if __name__ == "__main__":
    TARGET.write_text(source(), "utf-8")
