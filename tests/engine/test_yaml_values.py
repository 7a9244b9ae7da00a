"""YAML in files: scalars of YAML 1.2, keys once, aliases bounded; in front matter as before."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.errors import Invalid
from engine import yaml_values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on: yes\nno: off", {"on": "yes", "no": "off"}),
        ("[true, False, TRUE]", [True, False, True]),
        ("[~, null, Null, ]", [None, None, None]),
        ("a:", {"a": None}),
        ("[010, 0o17, 0x1f, -3, 1_0, 1:30]", [10, 15, 31, -3, "1_0", "1:30"]),
        ("[1.5, 1e3, .5, -1., 1.2.3]", [1.5, 1000.0, 0.5, -1.0, "1.2.3"]),
        ("2026-01-01", "2026-01-01"),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("", None),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert yaml_values.document(text) == value


TEN = "[" + ", ".join(["*{0}"] * 10) + "]"
BOMB = "a: &a [1]\n" + "".join(
    f"{name}: &{name} {TEN.format(below)}\n" for below, name in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: duplicate key 'a'"),
        ("true: 1", "line 1, column 1: a key must be a string; put it in quotes"),
        ("1: 1", "a key must be a string"),
        ("? [a]\n: 1", "a key must be a string"),
        ("a: &x [*x]", "an anchor contains its own alias"),
        (BOMB, "more than 100000 values"),
        ("!!binary aGk=", "could not determine a constructor"),
        ("!!python/object:os.system x", "could not determine a constructor"),
        ("!!int x", "a tag does not fit its value"),
        ("a: [", "line 1, column 5: "),
        ("a\n---\nb", "another document"),
        ("[" * 5000, "line 1, column 202: nested deeper than 200"),
        ("#" * (1 << 20 | 1), "longer than 1024 KiB"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(Invalid, match=said) as raised:
        yaml_values.document(text)
    assert "\n" not in str(raised.value)


def test_front_matter_is_read_as_models_write_it() -> None:
    assert yaml_values.front_matter("passed: yes\non: 2026-01-01") == {
        "passed": True,
        True: "2026-01-01",
    }
    with pytest.raises(Invalid, match="an alias is not accepted"):
        yaml_values.front_matter("a: &x [1]\nb: *x")
