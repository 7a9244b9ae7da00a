"""Workflow definitions: the file format, and its validation.

A definition is the object that `casfs workflow add` reads: name, description, roles (each
with its role-schema inline) and moderator rules. `check` is pure: it takes any JSON value
and reports every fault, one line each with its JSON path; errors make a definition unusable,
warnings are probable mistakes. `engine.moderator.rules` checks the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from casfs.canonical import member
from casfs.errors import Invalid
from casfs.store.nodes.schema import Schema
from casfs.threads import rule_prompts
from casfs.threads.workflow_path import END, START
from engine.processes import limits

WORKFLOW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ROLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

NO_ROLES = "$.roles: no role; add one by its name, such as roles: {writer: {systemPrompt: Write.}}"

_WORKFLOW = {"name": str, "description": str, "roles": Mapping, "moderator": list}
_ROLE = {
    "name": str,
    "description": str,
    "systemPrompt": str,
    "extractPrompt": str,
    "schema": Mapping,
}
_RULE = {"from": str, "to": str, "when": (str, type(None))}
_TYPE_NAMES = {
    str: "a string",
    Mapping: "an object",
    list: "an array",
    (str, type(None)): "a string or null",
}


@dataclass(frozen=True)
class CheckReport:
    """The faults of a definition, one line each. It is usable if there are no errors."""

    errors: list[str]
    warnings: list[str]


def check(definition: object) -> CheckReport:
    """Returns every fault of `definition`, which may be any JSON value."""

    faults = list(_members(definition, "$", _WORKFLOW))
    if not isinstance(definition, Mapping):
        return CheckReport(faults, [])
    if definition.get("roles") in (None, {}):
        other_faults = [fault for fault in faults if not fault.startswith("$.roles: ")]
        return CheckReport([NO_ROLES, *other_faults], [])
    name = definition.get("name")
    if isinstance(name, str) and not WORKFLOW_NAME.fullmatch(name):
        faults.append(f"$.name: {name!r} does not fit {WORKFLOW_NAME.pattern}")
    roles = definition.get("roles")
    rules = definition.get("moderator")
    if isinstance(roles, Mapping):
        for role, body in roles.items():
            faults += _role_faults(str(role), body)
    if not isinstance(roles, Mapping) or not isinstance(rules, list):
        return CheckReport(faults, [])
    return _with_rules(faults, rules, roles)


def _with_rules(faults: list[str], rules: list[Any], roles: Mapping[str, object]) -> CheckReport:
    """Adds the faults of the rules; routes are checked only where every rule is well-formed."""
    from engine.moderator import rules as moderator_rules  # the parser of expressions

    broken: list[str] = []
    expressions: list[str] = []
    for index, rule in enumerate(rules):
        broken += _members(rule, f"$.moderator[{index}]", members=_RULE, optional=("prompt",))
        if isinstance(rule, Mapping):
            broken += _unknown_ends(index, rule, roles)
            if "prompt" in rule:
                broken += _prompt_faults(f"$.moderator[{index}].prompt", rule)
            if isinstance(rule.get("when"), str):
                expressions += moderator_rules.expression_errors(index, rule["when"])
    if broken:
        return CheckReport([*faults, *broken, *expressions], [])
    schemas = {str(role): _schema_of(body) for role, body in roles.items()}
    return CheckReport(
        [
            *faults,
            *expressions,
            *moderator_rules.name_errors(rules, schemas),
            *moderator_rules.route_errors(rules),
        ],
        list(moderator_rules.warnings(rules, schemas)),
    )


def _members(
    value: object,
    path: str,
    members: Mapping[str, Any],
    optional: tuple[str, ...] = (),
    in_files: tuple[str, ...] = (),
) -> Iterator[str]:
    """Yields the faults of an object: required `members` with their types, optional `optional`; a
    workflow file may have `in_files` too."""
    if not isinstance(value, Mapping):
        yield f"{path}: must be an object"
        return
    for name, form in members.items():
        if name not in value:
            yield f"{member(path, name)}: missing"
        elif not isinstance(value[name], form):
            yield f"{member(path, name)}: must be {_TYPE_NAMES[form]}"
    for name in value:
        if name not in members and name not in optional:
            known = ", ".join([*members, *optional, *in_files])
            yield f"{member(path, str(name))}: no such field; there are {known}"


def _role_faults(role: str, body: object) -> Iterator[str]:
    path = member("$.roles", role)
    if role in (START, END):
        yield f"{path}: {role} is a reserved name"
    elif not ROLE_NAME.fullmatch(role):
        yield f"{path}: a role's name must fit {ROLE_NAME.pattern}"
    yield from _members(
        body, path, members=_ROLE, optional=("cacheable", "policy"), in_files=("agent",)
    )
    if not isinstance(body, Mapping):
        return
    if body.get("name") == "":
        yield f"{path}.name: must not be empty"
    elif isinstance(body.get("name"), str) and body["name"] != role and ROLE_NAME.fullmatch(role):
        yield f"{path}.name: must be {role!r}, its key; or leave it out"
    if body.get("cacheable", True) is not True:
        yield f"{path}.cacheable: must be true; leave it out where the role is not"
    if "policy" in body:
        yield from _policy_faults(body["policy"], f"{path}.policy")
    if isinstance(body.get("schema"), Mapping):
        yield from _schema_faults(body["schema"], f"{path}.schema")


_POLICY = "retries, timeoutS, unknown, limits"


def _policy_faults(policy: object, path: str) -> Iterator[str]:
    if not isinstance(policy, Mapping) or not policy:
        yield f"{path}: must be an object of {_POLICY}; leave it out where none is"
        return
    for name, value in policy.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if name == "retries" and not (number and isinstance(value, int)):
            yield f"{path}.retries: must be a whole number from 1; leave it out for none"
        elif name == "timeoutS" and not number:
            yield f"{path}.timeoutS: must be a number of seconds above 0"
        elif name == "unknown" and value != "suspend":
            yield f'{path}.unknown: must be "suspend"; leave it out where the step is run again'
        elif name == "limits":
            yield from limits.faults(value, f"{path}.limits")
        elif name not in _POLICY.split(", "):
            yield f"{path}.{name}: no such field; there are {_POLICY}"


def _schema_faults(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        yield f"{path}.name: a role-schema needs a name, a string that is not empty"
    try:
        Schema(dict(schema), extra=frozenset({"name"}), new=True)
    except Invalid as error:
        yield f"{path}: {error}"


def _schema_of(body: object) -> object:
    """Returns the role-schema; True, which allows all, where it is not usable."""
    schema = body.get("schema") if isinstance(body, Mapping) else None
    usable = isinstance(schema, Mapping) and not list(_schema_faults(schema, ""))
    return schema if usable else True


def _prompt_faults(path: str, rule: Mapping[str, object]) -> Iterator[str]:
    text = rule["prompt"]
    if not isinstance(text, str) or not text.strip() or rule.get("to") == END:
        yield f"{path}: must be a text, in a rule that leads to a role; leave it out elsewhere"
        return
    for field, names in rule_prompts.fields(text):
        if names is None:
            yield f"{path}: {{{{{field}}}}} names no field; write {{{{ status }}}} or {{{{ a.b }}}}"
        elif rule.get("from") == START:
            yield f"{path}: {{{{ {field} }}}}: {START} follows no step"


def _unknown_ends(
    index: int, rule: Mapping[str, object], roles: Mapping[str, object]
) -> Iterator[str]:
    """Yields the faults of a rule that does not lead from a role or START to a role or END."""
    for field, own, wrong in (("from", START, END), ("to", END, START)):
        name = rule.get(field)
        path = f"$.moderator[{index}].{field}"
        if name == wrong:
            yield f"{path}: {wrong} cannot stand here, {own} can"
        elif isinstance(name, str) and name != own and name not in roles:
            names = [role for role in map(str, roles) if ROLE_NAME.fullmatch(role)]
            known = ", ".join([*names, own])
            yield f"{path}: unknown role {name!r}; there are {known}"
