"""The JSON Schema of workflow files: what is accepted fits it; what has a wrong form does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs
import pytest

from engine import yaml_values
from engine.workflow import file, shipped
from tests.engine.workflow.test_file import FULL, SHORT
from tests.support.engine import Cli

VALIDATOR = jsonschema_rs.Draft202012Validator(file.schema())
FILES = {name: yaml_values.document(data.decode()) for name, data in shipped.files().items()}
FILES |= {"short": yaml_values.document(SHORT.decode()), "full": FULL}
FORM = ("missing", "must be a", "must be an", "no such field", "does not fit", "must fit")
# Said by the rules of the workflow, not by the form of the file.
WRONG: tuple[Any, ...] = (None, 5, "", [], {}, True)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something may be replaced; not inside a role's schema or an agent's config."""
    if path:
        yield path
    if path[-1:] in (("schema",), ("config",), ("agent",)) or not isinstance(value, dict | list):
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        yield from places(value[key], (*path, key))


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    for path in places(value):
        for wrong in (*WRONG, "drop", "add"):
            copied = copy.deepcopy(value)
            at = copied
            for part in path[:-1]:
                at = at[part]
            if wrong == "drop":
                del at[path[-1]]
            elif wrong != "add":
                at[path[-1]] = wrong
            elif isinstance(at[path[-1]], dict):
                at[path[-1]]["more"] = 1
            yield f"{path}: {wrong!r}", copied


@cache
def checked(name: str) -> list[tuple[str, bool, list[str]]]:
    """Of each change of a file: what it is, whether it fits the schema, the errors of a check."""
    return [
        (what, VALIDATOR.is_valid(value), file.complete(value, "stem").check().errors)
        for what, value in changed(FILES[name])
    ]


@pytest.mark.parametrize("name", FILES)
def test_what_is_accepted_fits(name: str) -> None:
    VALIDATOR.validate(FILES[name])
    assert [what for what, fits, errors in checked(name) if not errors and not fits] == []


@pytest.mark.parametrize("name", FILES)
def test_what_has_a_wrong_form_does_not_fit(name: str) -> None:
    refused = [
        (what, fits, errors)
        for what, fits, errors in checked(name)
        if any(form in error for error in errors for form in FORM)
    ]
    assert [one for one in refused if one[1]] == []
    assert len(refused) > 20


@pytest.mark.parametrize("agent", [5, "", {}, {"package": ""}, {"package": "a", "argv": []}])
def test_an_agent_of_a_wrong_form(agent: Any) -> None:
    value = copy.deepcopy(FULL)
    value["roles"]["on"]["agent"] = agent  # type: ignore[index]
    assert not VALIDATOR.is_valid(value)
    assert file.complete(value).check().errors


def test_it_is_printed(cli: Cli) -> None:
    assert cli("schema", "show", "workflow-file").json == file.schema()
    assert json.dumps(file.schema())
