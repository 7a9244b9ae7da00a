"""The scanner of secrets on the test values of gitleaks: what it finds of those that gitleaks takes
for secrets, and of those that it takes for none.

    git clone https://github.com/gitleaks/gitleaks
    python -m benchmarks.secrets_corpus gitleaks/cmd/generate/config/rules [--show]

The values are read out of the Go source: literals, what is put together from them, and what is
generated from a regular expression, from one seed. A value in 22 notations counts once, by whether
it is found in most of them; the notations alone are counted apart.
"""

from __future__ import annotations

import argparse
import random
import re
import string
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]  # of the parsed regular expression
from typing import Any

from benchmarks.common import table
from casfs.scanner import scan

TOKEN = re.compile(
    r"""(?sx)
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<raw>`[^`]*`)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<name>[A-Za-z_][\w.]*)
    |(?P<other>:=|\.\.\.|.)
    """
)
NOTATIONS = (
    '{i}Token="{s}"',
    '{i}Token = "{s}"',
    "{i}Token={s}",
    "{i}Token = {s}",
    "{i}Token = '{s}'",
    '{{\n    "{i}_token": "{s}"\n}}',
    '{{"config.ini": "{I}_TOKEN={s}\\nBACKUP_ENABLED=true"}}',
    "<{i}Token>\n    {s}\n</{i}Token>",
    "{i}_token: {s}",
    "{i}_token: '{s}'",
    '{i}_token: "{s}"',
    'string {i}Token = "{s}";',
    'var {i}Token string = "{s}"',
    'var {i}Token = "{s}"',
    '{i}Token := "{s}"',
    "{i}Token := `{s}`",
    '${i}Token .= "{s}"',
    'System.setProperty("{I}_TOKEN", "{s}")',
    '  "{i}Token" => "{s}"',
    '{I}_TOKEN ::= "{s}"',
    '{I}_TOKEN :::= "{s}"',
    '{I}_TOKEN ?= "{s}"',
)
REPEATED = 8  # of `+` and `*`
VISIBLE = string.ascii_letters + string.digits + "-_.~"


class Notations(list[str]):
    """One value in several notations."""


class GoValues:
    """The values of the lists `tps` and `fps` of one Go source."""

    def __init__(self, source: str, chance: random.Random) -> None:
        self.lists: dict[str, list[object]] = {"tps": [], "fps": []}
        self._tokens = [
            (str(match.lastgroup), match[0])
            for match in TOKEN.finditer(source)
            if match.lastgroup != "space"
        ]
        self._at = 0
        self._names: dict[str, object] = {}
        self._chance = chance
        self._read()

    def _read(self) -> None:
        while self._at < len(self._tokens) - 1:
            kind, text = self._tokens[self._at]
            after = self._tokens[self._at + 1][1]
            self._at += 1
            if text == "func":
                self._end_function()
            if kind != "name" or after not in (":=", "="):
                continue
            self._at += 1
            start = self._at
            try:
                self._names[text] = self._expression()
            except (LookupError, TypeError, ValueError, AttributeError):
                self._at = start
        self._end_function()

    def _end_function(self) -> None:
        for name, values in self.lists.items():
            value = self._names.pop(name, [])
            values.extend(value if isinstance(value, list) else [])

    def _expression(self) -> Any:  # a text, or what adding two gives
        value = self._operand()
        while self._peek() == "+":
            self._at += 1
            value = value + self._operand()
        return value

    def _operand(self) -> Any:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "raw":
            return text[1:-1]
        if kind == "string":
            return text[1:-1].encode().decode("unicode_escape")
        if text == "[":  # []string{…}
            self._at += 2
            return self._items("{", "}")
        if text == "map":  # map[string]string{…}
            self._at += 4
            return self._items("{", "}")
        if kind != "name":
            raise ValueError(f"no value begins with {text}")
        if self._peek() == "(":
            return self._call(text, self._items("(", ")"))
        return self._names[text]

    def _items(self, opening: str, closing: str) -> list[object]:
        """Returns what is between two brackets; of `key: value` the value."""
        if self._peek() != opening:
            raise ValueError(f"{opening} expected")
        self._at += 1
        items: list[object] = []
        while self._peek() != closing:
            items.append(self._expression())
            if self._peek() == ":":
                self._at += 1
                items[-1] = self._expression()
            if self._peek() == "...":
                self._at += 1
                values = items.pop()
                items.extend(values if isinstance(values, list) else [])
            if self._peek() == ",":
                self._at += 1
        self._at += 1
        return items

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _call(self, name: str, given: list[object]) -> object:
        match name.rpartition(".")[2]:
            case "append":
                first = given[0]
                return [*(first if isinstance(first, list) else []), *given[1:]]
            case "NewSecret" | "newPlausibleSecret":
                return generated(str(given[0]), self._chance)
            case "GenerateSampleSecret":
                return f'{given[0]}_api_token = "{given[1]}"'
            case "GenerateSampleSecrets":
                identifier, secret = str(given[0]), str(given[1])
                return [
                    Notations(
                        notation.format(i=identifier, I=identifier.upper(), s=secret)
                        for notation in NOTATIONS
                    )
                ]
            case "Sprintf":
                return str(given[0]) % tuple(given[1:])
            case "Repeat":
                return str(given[0]) * int(str(given[1]))
            case "Numeric":
                return f"[0-9]{{{given[0]}}}"
            case "Hex":
                return f"[a-f0-9]{{{given[0]}}}"
            case "AlphaNumeric":
                return f"[a-z0-9]{{{given[0]}}}"
            case "AlphaNumericExtendedShort":
                return f"[a-z0-9_-]{{{given[0]}}}"
            case "AlphaNumericExtended":
                return f"[a-z0-9=_-]{{{given[0]}}}"
            case "AlphaNumericExtendedLong":
                return f"[a-z0-9/=_+-]{{{given[0]}}}"
            case "Hex8_4_4_4_12":
                return "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
        raise LookupError(name)


def generated(regex: str, chance: random.Random) -> str:
    """Returns a text that matches a regular expression."""
    return "".join(_chosen(_parser.parse(regex), chance))


def _chosen(parsed: Any, chance: random.Random) -> Iterator[str]:
    for operator, argument in parsed:
        if operator is _constants.LITERAL:
            yield chr(argument)
        elif operator is _constants.IN:
            yield chance.choice(_members(argument))
        elif operator is _constants.ANY:
            yield chance.choice(VISIBLE)
        elif operator in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, repeated = argument
            count = chance.randint(least, min(most, max(least, REPEATED)))
            for _ in range(count):
                yield from _chosen(repeated, chance)
        elif operator is _constants.SUBPATTERN:
            yield from _chosen(argument[-1], chance)
        elif operator is _constants.BRANCH:
            yield from _chosen(chance.choice(argument[1]), chance)
        elif operator is not _constants.AT:
            raise ValueError(f"{operator} cannot be generated")


def _members(argument: Any) -> str:
    members = ""
    for operator, value in argument:
        if operator is _constants.LITERAL:
            members += chr(value)
        elif operator is _constants.RANGE:
            members += "".join(map(chr, range(value[0], value[1] + 1)))
        elif value is _constants.CATEGORY_DIGIT:
            members += string.digits
        elif value is _constants.CATEGORY_WORD:
            members += string.ascii_letters + string.digits + "_"
        else:
            raise ValueError(f"{operator} cannot be generated")
    return members


def notations_found(value: object) -> list[bool]:
    return [bool(scan(text.encode())) for text in value] if isinstance(value, Notations) else []


def is_found(value: object) -> bool:
    if isinstance(value, Notations):
        return sum(notations_found(value)) * 2 > len(value)
    return bool(scan(str(value).encode()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", type=Path)
    parser.add_argument("--show", action="store_true", help="the values missed, and those false")
    arguments = parser.parse_args()
    totals = {"tps": [0, 0], "fps": [0, 0]}
    notations: list[bool] = []
    missed: dict[str, list[object]] = defaultdict(list)
    false: dict[str, list[object]] = defaultdict(list)
    for path in sorted(arguments.rules.glob("*.go")):
        values = GoValues(path.read_text(), random.Random(path.name))
        for name, listed in values.lists.items():
            for value in filter(None, listed):  # an empty one is told by its file's name
                hit = is_found(value)
                if name == "tps":
                    notations.extend(notations_found(value))
                totals[name][hit] += 1
                if hit != (name == "tps"):
                    (missed if name == "tps" else false)[path.stem].append(value)
    rows = [[name, f"{hits}", f"{absent + hits}"] for name, (absent, hits) in totals.items()]
    rows.append(["notations", f"{sum(notations)}", f"{len(notations)}"])
    table("The values of gitleaks", ["", "found", "of"], rows)
    for what, wrong in (("missed", missed), ("false", false)):
        print(f"\n{what}:", ", ".join(f"{stem} {len(listed)}" for stem, listed in wrong.items()))
        for stem, listed in wrong.items() if arguments.show else ():
            for value in listed:
                print(" ", stem, repr(value[0] if isinstance(value, Notations) else value)[:200])


if __name__ == "__main__":
    main()
