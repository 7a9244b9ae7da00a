"""Changes one setting, or one table, in the text of a `config.toml`; comments and everything else
stay.

Only the line of the setting is changed. Where its value is written in another form (a list over
several lines, a dotted key), the change is refused, and the file is edited by hand.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from casfs.errors import Refused

TABLE = re.compile(r"\s*\[\s*([\w.-]+)\s*\]\s*(#.*)?")
COMMENT = re.compile(r"""^(?:[^"'#]|"[^"]*"|'[^']*')*?(\s+#.*)$""")


def with_setting(text: str, name: str, value: Any) -> str:
    """Returns the text with a setting set, or left out where `value` is None. Raises Refused."""
    table, _, key = name.partition(".")
    lines = text.splitlines()
    start, end = _table(lines, table)
    index = next((n for n in range(start, end) if re.match(rf"\s*{key}\s*=", lines[n])), None)
    if value is None:
        lines = lines if index is None else [*lines[:index], *lines[index + 1 :]]
    else:
        comment = COMMENT.match(lines[index]) if index is not None else None
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}{comment[1] if comment else ''}"
        if index is not None:
            lines[index] = line
        elif start <= len(lines):
            lines.insert(start, line)
        else:
            lines += ["", f"[{table}]", line] if lines else [f"[{table}]", line]
    new_text = "".join(f"{line}\n" for line in lines)
    if not _is_changed_as_meant(text, new_text, table=table, key=key, value=value):
        raise Refused(f"{name} stands in a form that cannot be changed; use `casfs config edit`")
    return new_text


def with_table(text: str, name: str, values: Mapping[str, Any]) -> str:
    """Returns the text with the table `GROUP.NAME`, or `NAME`, replaced; left out where `values` is
    empty. Raises Refused."""
    group, _, key = name.partition(".")
    lines = text.splitlines()
    start, end = _table(lines, name)
    while start <= end <= len(lines) and lines[end - 1].lstrip()[:1] in ("", "#"):
        end -= 1  # belongs to what follows
    del lines[start - 1 : end]
    if values:
        pairs = [
            f"{field} = {json.dumps(value, ensure_ascii=False)}" for field, value in values.items()
        ]
        lines += [*([""] if lines else []), f"[{name}]", *pairs]
    new_text = "".join(f"{line}\n" for line in lines)
    is_meant = (
        _is_changed_as_meant(text, new_text, table=group, key=key, value=dict(values) or None)
        if key
        else tomllib.loads(new_text) == {**tomllib.loads(text), group: dict(values)}
    )
    if not is_meant:
        raise Refused(f"[{name}] stands in a form that cannot be changed; use `casfs config edit`")
    return new_text


def _table(lines: list[str], name: str) -> tuple[int, int]:
    """Returns the range of a table's lines, without its header; beyond the end where there is
    none."""
    headers = [(n, header[1]) for n, line in enumerate(lines) if (header := TABLE.fullmatch(line))]
    for index, (n, table) in enumerate(headers):
        if table == name:
            return n + 1, headers[index + 1][0] if index + 1 < len(headers) else len(lines)
    return len(lines) + 1, len(lines) + 1


def _is_changed_as_meant(old: str, new: str, table: str, key: str, value: Any) -> bool:
    try:
        before = tomllib.loads(old)
        after = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return False
    wanted = {**before.get(table, {}), key: value}
    if value is None:
        del wanted[key]
    other_tables = [{**document, table: None} for document in (before, after)]
    return bool(after.get(table, {}) == wanted and other_tables[0] == other_tables[1])
