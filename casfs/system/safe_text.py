"""Text from outside, with controls and bidirectional marks made visible."""

from __future__ import annotations

import re

# Controls (C0 but newline and tab, DEL, C1), line separators and bidirectional marks: what moves
# the cursor, or shows a text in another order than it has. A carriage return before a newline
# does neither.
UNSAFE = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
UNSAFE_IN_LINE = re.compile(f"{UNSAFE.pattern}|[\t\r\n]")


def escape(text: str, *, one_line: bool = False) -> str:
    """Returns a text from outside with what could command a terminal as \\xXX or \\uXXXX.

    `one_line`: tabs and newlines too, as in a name.
    """
    return (UNSAFE_IN_LINE if one_line else UNSAFE).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )
