"""Members of JSON texts: what was added and is taken out again leaves every byte as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.errors import Invalid
from casfs.system import json_edit

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
LAYOUTS = st.sampled_from([None, 1, 2, 4, "\t"])


def layout(value: Any, indent: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


@given(st.dictionaries(st.text(max_size=4), VALUES), LAYOUTS, VALUES)
def test_append_and_remove_are_inverse(value: dict[str, Any], indent: Any, added: Any) -> None:
    text = layout(value, indent) + "\n"
    parent = json_edit.container(text, 0)
    before = json_edit.inside(text, parent)
    changed = json_edit.append(text, parent, added, key="the added one")
    assert json.loads(changed) == {**value, "the added one": added}
    there = json_edit.container(changed, 0)
    member = there.member("the added one")
    assert member is not None
    empty = before if not value else ""
    assert json_edit.remove(changed, there, member, empty) == text


@given(st.lists(VALUES, min_size=1), LAYOUTS, st.data())
def test_any_element_can_be_removed(value: list[Any], indent: Any, data: st.DataObject) -> None:
    text = layout(value, indent)
    parent = json_edit.container(text, 0)
    index = data.draw(st.integers(0, len(value) - 1))
    left = json_edit.remove(text, parent, parent.members[index])
    assert json.loads(left) == value[:index] + value[index + 1 :]


def test_the_layout_of_the_others() -> None:
    text = '{\n\t"a": {"b": 1},\n\t"c": []\n}'
    added = json_edit.append(text, json_edit.container(text, 0), {"e": [1]}, key="d")
    assert added == text[:-2] + ',\n\t"d": {\n\t\t"e": [\n\t\t\t1\n\t\t]\n\t}\n}'
    inner = json_edit.container(text, text.index("{", 1))
    assert json_edit.append(text, inner, [2], key="f") == text.replace("1}", '1,"f": [2]}')


@pytest.mark.parametrize(
    ("text", "fault"),
    [("", "another value"), ("1", "another value"), ('{"a" 1}', "not JSON"), ("[1", "not JSON")],
)
def test_what_is_no_container(text: str, fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        json_edit.container(text, 0)


def test_two_members_with_one_key() -> None:
    with pytest.raises(Invalid, match="twice"):
        json_edit.container('{"a": 1, "a": 2}', 0).member("a")
