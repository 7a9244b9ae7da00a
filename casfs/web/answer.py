"""The answer to a thread's question: a form made from the role's schema, checked by that schema.

The answer to the `human` agent is the meta of its step, so it has a field for each property. Where
another agent asks, or the schema names no properties, the answer is a text; a question for
permission has three buttons, and a fourth that shows what the command would change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import RedirectResponse, Response

from casfs import canonical
from casfs.errors import CasfsError, Conflict, Invalid, NoDaemon
from casfs.review import subject
from casfs.store.nodes.schema import Schema
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.permission import ALLOW, ALWAYS, DENIAL, DENY, PermissionRequest
from casfs.threads.state import says
from casfs.threads.threads import SUSPENDED, Thread
from casfs.trees.diff import unified_diff
from casfs.web import patch, texts
from casfs.web.actions import ask
from casfs.web.patch import FilePatch
from casfs.web.site import Call, status_of
from casfs.web.texts import Text

MAX_DIFF_BYTES = 64 << 10
MAX_RADIOS = 5  # choices of a required field; others are a list
WHOLE = ""  # name of the only field of a text, or of JSON
PREVIEW = "preview"  # choices of a permission beside those that are answers
REASON = "reason"
PREFIX = "field-"  # of the others: before the name of the property
ROLE_KEYWORDS = frozenset({"name", "$id"})  # of a role-schema; they assert nothing
ASSERTS_NOTHING = ROLE_KEYWORDS | {"type", "title", "description", "$schema", "$comment"}


@dataclass(frozen=True)
class Field:
    """`kind`: choice, boolean, number, text, lines (of an array), json; `choices`: (value, label);
    `value`: what was typed; `fault`: of that."""

    name: str
    kind: str
    label: str
    help: str = ""
    required: bool = False
    choices: Sequence[tuple[str, str]] = ()
    value: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Question:
    """`reason`: the question in a line; `prompt`: the whole of it; `files`: that the thread has
    changed so far; `schema`: of the answer, None for a text; `asked_files`: that the `permission`
    is about."""

    thread: Thread
    role: str
    reason: str
    prompt: Text
    task: Text
    files: Sequence[FilePatch]
    fields: Sequence[Field]
    schema: Mapping[str, Any] | None
    permission: PermissionRequest | None = None
    asked_files: Sequence[FilePatch] = ()


@dataclass(frozen=True)
class Tried:
    """What a command has done in a copy; as the daemon's answer to `preview`."""

    answer: Mapping[str, Any]
    output: Text
    files: Sequence[FilePatch]


def show(call: Call) -> Response:
    return _page(call, question(call.store, lookup.find(call.store, call.path["id"])))


def send(call: Call) -> Response:
    """Sends the answer to the daemon; shows the form again with the fault of one that does not
    fit."""
    open_question = question(call.store, lookup.find(call.store, call.path["id"]))
    if open_question.permission is not None:
        return _send_permission(call, open_question)
    filled = [
        replace(field, value=call.form.get(PREFIX + field.name, ""))
        for field in open_question.fields
    ]
    try:
        text = answer(open_question.schema, filled)
        ask(call, "resume", id=open_question.thread.id, input=text)
    except (Invalid, NoDaemon) as error:
        return _page(call, replace(open_question, fields=marked(filled, str(error))), error)
    return RedirectResponse(f"/threads/{open_question.thread.id}", 303)


def _send_permission(call: Call, open_question: Question) -> Response:
    id = open_question.thread.id
    choice = call.form.get("choice", "")
    try:
        if choice == PREVIEW:
            answer = ask(call, "preview", id=id)
            files = patch.parse(answer["patch"].encode("utf-8", "replace"))
            tried = Tried(answer, texts.bounded(answer["output"]), files)
            return _page(call, open_question, tried=tried)
        reason = call.form.get("reason", "").strip()
        text = DENIAL + reason if choice == REASON and reason else choice
        if text not in (ALLOW, ALWAYS, DENY) and not text.startswith(DENIAL):
            raise Invalid("say why, or choose a button")
        ask(call, "resume", id=id, input=text, question=call.form.get("question"))
    except CasfsError as error:
        return _page(call, open_question, error)
    return call.back(f"/threads/{id}")


def _page(
    call: Call,
    open_question: Question,
    fault: CasfsError | None = None,
    tried: Tried | None = None,
) -> Response:
    status = status_of(fault) if fault else 200
    form_options: dict[str, Any] = {"prefix": PREFIX, "radios": MAX_RADIOS}
    return call.page(
        "answer.html",
        status=status,
        question=open_question,
        fault=fault,
        tried=tried,
        **form_options,
    )


def question(store: Store, thread: Thread) -> Question:
    """Returns the open question of a thread. Raises Conflict where it has none."""
    record = thread.record
    agents = threads.agents(store, thread)
    role = thread.pending["role"] if thread.pending else ""
    question_hash = record.get("question")
    if thread.status != SUSPENDED or not question_hash or role not in agents:
        raise Conflict(f"thread {thread.id} {says(thread)}, and asks nothing")
    agent = store.node(agents[role], "agent").payload
    start = threads.start(store, thread).payload
    schema = None
    if agent["package"] == "human":
        flow = store.node(threads.workflow(store, thread), "workflow").payload
        held = store.node(flow["roles"][role], "role").payload["schema"]
        schema = store.node(held, "role-schema").payload
        if schema.keys() <= ASSERTS_NOTHING:
            schema = None
    files: list[FilePatch] = []
    if start["workspace"] is not None:
        after = subject.newest_tree(store, thread)  # also of the step that asks
        files = patch.parse(
            unified_diff.patch(store, start["workspace"], new=after, limit=MAX_DIFF_BYTES)
        )
    permission = PermissionRequest.of_question(store, question_hash)
    asked_patch = b"" if permission is None else permission.patch.encode("utf-8", "replace")
    return Question(
        thread,
        role,
        reason=str(record["reason"]).removeprefix(f"{role}: "),
        prompt=texts.content(store, question_hash),
        task=texts.content(store, start["input"]),
        files=files,
        fields=form(schema),
        schema=schema,
        permission=permission,
        asked_files=patch.parse(asked_patch),
    )


def form(schema: Mapping[str, Any] | None) -> list[Field]:
    """Returns the fields of an answer that fits a schema; one for a text, or for JSON. Raises
    Invalid for what is no schema."""
    if schema is None:
        return [Field(WHOLE, "text", "Answer", required=True)]
    Schema(dict(schema), extra=ROLE_KEYWORDS)
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return [Field(WHOLE, "json", "Answer, a JSON object", required=True)]
    required = schema.get("required", ())
    fields = [
        _field(name, property_schema, name in required)
        for name, property_schema in properties.items()
    ]
    return sorted(fields, key=lambda field: not field.required)


def _field(name: str, schema: Any, required: bool) -> Field:
    schema = schema if isinstance(schema, dict) else {}
    label = str(schema.get("title", name))
    help = str(schema.get("description", ""))
    field = Field(name, "json", label=label, help=help, required=required)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        named = [(json.dumps(choice), choice) for choice in values]
        choices = [(text, choice if isinstance(choice, str) else text) for text, choice in named]
        return replace(field, kind="choice", choices=choices)
    items = schema.get("items")
    match schema.get("type"):
        case "boolean":
            return replace(field, kind="choice", choices=[("true", "yes"), ("false", "no")])
        case "number" | "integer":
            return replace(field, kind="number")
        case "string":
            return replace(field, kind="text")
        case "array" if isinstance(items, dict) and items.get("type") == "string":
            return replace(field, kind="lines")
    return field


def answer(schema: Mapping[str, Any] | None, fields: Sequence[Field]) -> str:
    """Returns what was filled in, as the text of an answer. Raises Invalid."""
    if schema is None:
        if not fields[0].value.strip():
            raise Invalid("the answer is empty")
        return fields[0].value
    properties = {field.name: _value(field) for field in fields if field.value.strip()}
    # Not by the field's name: a property may have an empty one, too.
    meta = properties if schema.get("properties") else properties.get(WHOLE, {})
    Schema(dict(schema), extra=ROLE_KEYWORDS).check(meta)
    return json.dumps(meta, ensure_ascii=False)


def _value(field: Field) -> Any:
    """Returns what was filled into a field, as JSON. Raises Invalid."""
    if field.kind == "text":
        return field.value
    if field.kind == "lines":
        return field.value.strip("\n").split("\n")
    try:
        return canonical.parse(field.value)
    except Invalid as error:
        fault = "not a number" if field.kind == "number" else str(error)
        raise Invalid(f"{canonical.member('$', field.name)}: {fault}") from None


def marked(fields: Sequence[Field], fault: str) -> list[Field]:
    """Returns the fields with the fault beside the one that it is about."""

    def about(field: Field) -> bool:
        path = canonical.member("$", field.name)
        remainder = fault.removeprefix(path)
        missing = fault.startswith("$: ") and f"{json.dumps(field.name)} is a required" in fault
        return (remainder != fault and remainder[:1] in (":", ".", "[")) or missing

    return [replace(field, fault=fault if about(field) else "") for field in fields]
