"""Hooks in settings: added beside what is there, taken out to the last byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.attach import settings
from casfs.errors import Invalid

PROGRAM = "/store/hooks/report.py"
HOOK = {"type": "command", "command": f"python3 -IS {PROGRAM} claude || :", "timeout": 10}
HOOKS = {"PreToolUse": HOOK, "Stop": HOOK}
OTHER = {"hooks": [{"type": "command", "command": "make lint"}], "matcher": "Bash"}
GROUPS = st.lists(st.just(OTHER), max_size=2)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "permissions": st.just({"allow": ["Bash(ls:*)"]}),
        "hooks": st.dictionaries(st.sampled_from(["PreToolUse", "PostToolUse"]), GROUPS),
        "env": st.dictionaries(st.text(max_size=3), st.text(max_size=3)),
    },
)
LAYOUTS = st.sampled_from([None, 2, 4, "\t"])


@given(VALUES, LAYOUTS, st.sampled_from(["", "\n"]))
def test_to_the_last_byte(value: dict[str, Any], indent: Any, end: str) -> None:
    text = json.dumps(value, indent=indent) + end
    changed, emptied = settings.with_hooks(text, HOOKS)
    assert settings.events(changed, PROGRAM) == set(HOOKS)
    assert list(json.loads(changed)) == [*value, *["hooks"] * ("hooks" not in value)]
    for event, groups in value.get("hooks", {}).items():
        assert json.loads(changed)["hooks"][event][: len(groups)] == groups
    assert settings.without_hooks(changed, PROGRAM, emptied) == text


@given(VALUES, LAYOUTS, LAYOUTS)
def test_from_a_file_that_was_laid_out_anew(value: dict[str, Any], old: Any, new: Any) -> None:
    changed, emptied = settings.with_hooks(json.dumps(value, indent=old), HOOKS)
    other = {**json.loads(changed), "model": "opus"}
    other["hooks"] = {"SessionEnd": [OTHER], **other["hooks"]}
    other["hooks"]["Stop"].append(OTHER)
    left = settings.without_hooks(json.dumps(other, indent=new), PROGRAM, emptied)
    hooks = {"SessionEnd": [OTHER], **value.get("hooks", {}), "Stop": [OTHER]}
    assert json.loads(left) == {**value, "model": "opus", "hooks": hooks}
    assert settings.events(left, PROGRAM) == set()


def test_a_hook_in_the_group_of_another() -> None:
    group = {"hooks": [*OTHER["hooks"], HOOK]}
    text = json.dumps({"hooks": {"Stop": [group]}})
    left = json.loads(settings.without_hooks(text, PROGRAM, {}))
    assert left == {"hooks": {"Stop": [{"hooks": OTHER["hooks"]}]}}


def test_no_file_yet() -> None:
    changed, emptied = settings.with_hooks("", HOOKS)
    assert settings.without_hooks(changed, PROGRAM, emptied) == "{}\n"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"hooks": []}',
        '{"hooks": {"Stop": {}}}',
        '{"hooks": 1}',
        '{"a": 1',
        '{"a": 1} x',
        "// a comment\n{}",
        '{"hooks": {}, "hooks": {}}',
    ],
)
def test_what_cannot_be_changed(text: str) -> None:
    with pytest.raises(Invalid):
        settings.with_hooks(text, HOOKS)


@pytest.mark.parametrize(
    "hooks", [1, [], {"Stop": 1}, {"Stop": [1]}, {"Stop": [{"hooks": {"command": PROGRAM}}]}]
)
def test_strange_hooks_are_none_of_ours(hooks: Any) -> None:
    assert settings.events(json.dumps({"hooks": hooks}), PROGRAM) == set()
