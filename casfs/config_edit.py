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
    at = next((n for n in range(start, end) if re.match(rf"\s*{key}\s*=", lines[n])), None)
    if value is None:
        lines = lines if at is None else [*lines[:at], *lines[at + 1 :]]
    else:
        comment = COMMENT.match(lines[at]) if at is not None else None
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}{comment[1] if comment else ''}"
        if at is not None:
            lines[at] = line
        elif start <= len(lines):
            lines.insert(start, line)
        else:
            lines += ["", f"[{table}]", line] if lines else [f"[{table}]", line]
    made = "".join(f"{line}\n" for line in lines)
    if not _is_changed_as_meant(text, made, table=table, key=key, value=value):
        raise Refused(f"{name} stands in a form that cannot be changed; use `casfs config edit`")
    return made


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
            f"{one} = {json.dumps(value, ensure_ascii=False)}" for one, value in values.items()
        ]
        lines += [*([""] if lines else []), f"[{name}]", *pairs]
    made = "".join(f"{line}\n" for line in lines)
    is_meant = (
        _is_changed_as_meant(text, made, table=group, key=key, value=dict(values) or None)
        if key
        else tomllib.loads(made) == {**tomllib.loads(text), group: dict(values)}
    )
    if not is_meant:
        raise Refused(f"[{name}] stands in a form that cannot be changed; use `casfs config edit`")
    return made


def _table(lines: list[str], name: str) -> tuple[int, int]:
    """Returns the range of a table's lines, without its header; beyond the end where there is
    none."""
    found = [(n, header[1]) for n, line in enumerate(lines) if (header := TABLE.fullmatch(line))]
    for place, (n, table) in enumerate(found):
        if table == name:
            return n + 1, found[place + 1][0] if place + 1 < len(found) else len(lines)
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
    rest = [{**one, table: None} for one in (before, after)]
    return bool(after.get(table, {}) == wanted and rest[0] == rest[1])
