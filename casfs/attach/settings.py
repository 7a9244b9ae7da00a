"""Hooks in the settings of an agent, in the shape that Claude Code has given them:

    {"hooks": {EVENT: [{"hooks": [{"type": "command", "command": …, "timeout": …}]}]}}

They stand beside what is there, in the order and the layout that it has. `without_hooks` takes out
exactly what `with_hooks` has added, also from a file that was changed or laid out anew since. Ours
are known by the path of the hook program in the command. Pure functions of texts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from casfs.errors import Invalid
from casfs.system import json_edit
from casfs.system.json_edit import Container, Member

HOOKS = "hooks"
COMMENT = re.compile(r"(?:^|\s)#.*")


def with_hooks(text: str, hooks: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Returns the settings with a hook for each event, and the white space inside the containers
    that were empty, by their paths, for `without_hooks`. Raises Invalid."""
    emptied: dict[str, str] = {}
    text = text if text.strip() else "{}\n"
    json_edit.whole(text)
    if _at(text, HOOKS) is None:
        groups = {event: [_group(hook)] for event, hook in hooks.items()}
        return _append(text, (), emptied, groups, key=HOOKS), emptied
    for event, hook in hooks.items():
        if _at(text, HOOKS, event) is None:
            text = _append(text, (HOOKS,), emptied, [_group(hook)], key=event)
        else:
            text = _append(text, (HOOKS, event), emptied, _group(hook))
    return text, emptied


def without_hooks(text: str, program: str, emptied: Mapping[str, str]) -> str:
    """Returns the settings without the hooks that run `program`. Raises Invalid."""
    while (path := next(_own_hooks(text, program), None)) is not None:
        text = _without(text, path, emptied)
    return text


def events(text: str, program: str) -> set[str]:
    """Returns the events whose hooks run `program`. Raises Invalid."""
    if not text.strip():
        return set()
    json_edit.whole(text)
    return {str(path[1]) for path in _own_hooks(text, program)}


Path = tuple[str | int, ...]  # keys and indices, from the top


def _group(hook: Mapping[str, Any]) -> dict[str, Any]:
    return {"hooks": [hook]}


def _own_hooks(text: str, program: str) -> Iterator[Path]:
    top = _value(text, json_edit.container(text, 0))
    by_event = top.get(HOOKS)
    for event, groups in by_event.items() if isinstance(by_event, dict) else ():
        for index, group in enumerate(_list(groups)):
            hooks = group.get("hooks") if isinstance(group, dict) else None
            for number, hook in enumerate(_list(hooks)):
                if isinstance(hook, dict) and runs(str(hook.get("command")), program):
                    yield HOOKS, event, index, "hooks", number


def runs(command: str, program: str) -> bool:
    """Whether a line of a shell has a word with `program`: a comment may name it, and a path with
    an apostrophe is written in pieces."""
    try:
        words = shlex.split(COMMENT.sub("", command))
    except ValueError:
        return program in command
    return any(program in word for word in words)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _value(text: str, parent: Container) -> dict[str, Any]:
    value, _ = json_edit.DECODER.raw_decode(text, parent.start)
    if not isinstance(value, dict):
        raise Invalid("is not a JSON object")
    return value


def _at(text: str, *path: str | int) -> Container | None:
    """Returns the container at a path; None where there is nothing. Raises Invalid."""
    container = json_edit.container(text, 0)
    if json_edit.SPACE.sub("", text[container.end :]):
        raise Invalid("is not JSON: it goes on after its end")
    for key in path:
        member = _member(container, key)
        if member is None:
            return None
        container = json_edit.container(text, member.value_start)
    return container


def _member(container: Container, key: str | int) -> Member | None:
    return container.members[key] if isinstance(key, int) else container.member(key)


def _append(
    text: str, path: Path, emptied: dict[str, str], value: Any, key: str | None = None
) -> str:
    parent = _at(text, *path)
    assert parent is not None
    is_object = text[parent.start] == "{"
    if is_object != (key is not None):
        raise Invalid(f"has no {'object' if key else 'list'} as {_named(path) or 'its value'}")
    if not parent.members:
        emptied[_named(path)] = json_edit.inside(text, parent)
    return json_edit.append(text, parent, value, key)


def _without(text: str, path: Path, emptied: Mapping[str, str]) -> str:
    """Takes out a hook, and what holds nothing after that, unless it was empty before."""
    for depth in range(len(path), 0, -1):
        above, key = path[: depth - 1], path[depth - 1]
        parent = _at(text, *above)
        assert parent is not None
        member = _member(parent, key)
        assert member is not None
        is_last = len(parent.members) == 1
        was_empty = _named(above) in emptied
        text = json_edit.remove(text, parent, member, emptied.get(_named(above), ""))
        # The top stays, and so does what had nothing in it before.
        if not is_last or was_empty or not above:
            return text
    return text


def _named(path: Iterable[str | int]) -> str:
    return "/".join(map(str, path))
