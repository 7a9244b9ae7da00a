"""Writes `casfs/payloads.py` from the schemas: python -m tests.support.payload_types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "casfs/payloads.py"
HEAD = '''"""The payloads of the built-in node types, for a type checker (`Node.payload`).

Made from `schemas/` by `python -m tests.support.payload_types`; a test compares them.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict
'''
TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}


def source() -> str:
    parts = [HEAD]
    for path in sorted((ROOT / "schemas").glob("*.json")):
        parts.append(_definition(json.loads(path.read_text("utf-8"))))
    return "\n\n".join(parts)


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
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(dict.fromkeys(type(one).__name__ for one in values))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}) for one in kind)
    if kind == "array":
        return f"list[{_type(schema.get('items', {}))}]"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return f"dict[str, {_type(values)}]"
    return TYPES.get(kind, "Any")


if __name__ == "__main__":
    TARGET.write_text(source(), "utf-8")
