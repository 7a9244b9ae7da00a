"""A store of real runs in which everything that an agent, or who sent the store, could name or say
is markup that tries to run a script.

Each payload that runs sets `window.pwned`, and says its number: `XSS07` is seen as text where a
page shows the payload as it should be.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import trio

from casfs.backend.protocols import Head, HeadName
from casfs.checkpoints import checkpoint, create
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.digest import NodeHash
from casfs.review import comments, subject
from casfs.review.comments import Comment
from casfs.store.nodes.node import Node
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.permission import PermissionRequest
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support import model_server
from tests.support.attached_agent import AttachedAgent
from tests.support.engine import ONE, STATUS, carry_on, role, rule, shell, workflow
from tests.support.following import OwnSessionDirectory
from tests.support.helpers import put_tree, set_head, write_tree
from tests.support.new_store import init_store

RUN = "pwned=1"
FORMS = """
<script>{RUN}</script>
</script><script>{RUN}</script>
<img src=x onerror={RUN}>
<img src=x onerror=alert(1)>
"><img src=x onerror={RUN}>
'><img src=x onerror={RUN}>
" onmouseover="{RUN}" x="
' onfocus='{RUN}' autofocus tabindex=1 x='
<svg onload={RUN}>
<svg><script>{RUN}</script></svg>
<svg><animate onbegin={RUN} attributeName=x dur=1s>
<svg><a xlink:href="javascript:{RUN}"><text y=9>x</text></a></svg>
<math><mi xlink:href="javascript:{RUN}">x</mi></math>
<iframe src="javascript:parent.{RUN}"></iframe>
<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>
<object data="javascript:{RUN}"></object>
<embed src="javascript:{RUN}">
<base href="https://evil.example/">
<link rel=stylesheet href=//evil.example/x.css>
<meta http-equiv=refresh content="0;url=javascript:{RUN}">
<style>@import "//evil.example/x.css"; body{{display:none}}</style>
<body onload={RUN}>
<details open ontoggle={RUN}>
<video><source onerror={RUN}></video>
<audio src=x onerror={RUN}>
<input autofocus onfocus={RUN}>
<select autofocus onfocus={RUN}></select>
<textarea autofocus onfocus={RUN}></textarea>
</textarea><script>{RUN}</script>
</title><script>{RUN}</script>
</pre><script>{RUN}</script>
--><script>{RUN}</script>
]]><script>{RUN}</script>
<form action="javascript:{RUN}"><button>go</button></form>
<button formaction="javascript:{RUN}">go</button>
<a href="javascript:{RUN}">x</a>
<a href="java&#9;script:{RUN}">x</a>
<a href="data:text/html,<script>opener.{RUN}</script>">x</a>
[x](javascript:{RUN})
[x](java&#115;cript:{RUN})
[x](data:text/html;base64,PHNjcmlwdD5wd25lZD0xPC9zY3JpcHQ+)
![x](x"onerror="{RUN})
<javascript:{RUN}>
[x]: javascript:{RUN} "x"
`<img src=x onerror={RUN}>`
{{{{ constructor.constructor("{RUN}")() }}}}
{{% for x in ().__class__.__base__.__subclasses__() %}}{{% endfor %}}
&lt;script&gt;{RUN}&lt;/script&gt;
\u202e<script>{RUN}</script>\u2066
<x style="animation-name:x" onanimationstart={RUN}>
"""
PAYLOADS = [
    f"XSS{number:02}{form.format(RUN=RUN)}"
    for number, form in enumerate(FORMS.strip().splitlines(), 1)
]
ALL = "\n\n".join(PAYLOADS)
NAMES = [one.replace("/", "\u2215") for one in PAYLOADS]  # of files
PATCH = "".join(f"diff --git a/{name} b/{name}\n@@ -1 +1 @@\n-{name}\n+x\n" for name in NAMES)
SEEN = re.compile("XSS([0-9]{2})")


@dataclass
class Site:
    """`ended`: a thread with steps of every kind; `asks`: one with a question; `failed`: one whose
    agent failed; `runs`: one that runs, as its record says; `calls`: one with a child; `session`:
    of an attached agent; `permission`: one that asks for permission."""

    root: Path
    ended: Thread
    asks: Thread
    failed: Thread
    runs: Thread
    calls: Thread
    session: Thread
    permission: Thread
    steps: list[Node]  # of `ended`
    checkpoints: list[Checkpoint]  # of the name `app`


def build(folder: Path) -> Site:
    with init_store(folder / "store") as store, model_server.served(*_script()) as model:
        return trio.run(_build, store, folder, model.url, _session(store, folder))


def _session(store: Store, folder: Path) -> Thread:
    """A session of an attached agent: what it was asked, and the files that it wrote."""
    project = folder / f"project {NAMES[1]}"
    project.mkdir()
    followed = OwnSessionDirectory(store, project, None)
    try:
        agent = AttachedAgent(store, project, followed)
        for payload in PAYLOADS:
            agent.prompt(payload)
            agent.stop(payload)
        agent.prompt(ALL)
        for name in NAMES:
            agent.call(partial(write_tree, project, {name: b"x"}), PAYLOADS[3], name)
        tree = subject.newest_tree(store, agent.thread)
        drafts = [
            Comment(0, tree, os.fsencode(name), 1, count=1, text=ALL, suggestion=ALL)
            for name in NAMES[:2]
        ]
        comments.change(store, agent.thread.id, lambda old, _: reduce(comments.add, drafts, old))
        return agent.thread
    finally:
        followed.close()


def _script() -> list[model_server.Say]:
    """A session of two turns: calls of tools, known and unknown, and what it says at the end."""
    call = model_server.tool_calls(
        ("cas_put", json.dumps({"text": ALL})),
        (PAYLOADS[2], json.dumps({PAYLOADS[3]: ALL})),
        ("read_file", json.dumps({"path": PAYLOADS[4]})),
        said=PAYLOADS[5],
    )
    return [call, model_server.text(ALL + '\n```json\n{"status": "done"}\n```\n')]


async def _build(store: Store, folder: Path, url: str, session: Thread) -> Site:
    roles = {key: role(key, {**STATUS, "title": PAYLOADS[7]}) for key in PAYLOADS[:4]}
    roles[PAYLOADS[1]]["policy"] = {"retries": 1}
    for one in roles.values():
        one.update(description=PAYLOADS[8], systemPrompt=ALL, extractPrompt=PAYLOADS[9])
    plan, code, model, last = PAYLOADS[:4]
    edges = [
        rule("__start__", plan),
        rule(plan, code),
        rule(code, model, f'$count($steps) > 1 or "{PAYLOADS[10][:5]}" = "x"'),
        rule(model, last),
        rule(last, "__end__"),
    ]
    flow = {**workflow(edges, PAYLOADS[11]), "description": ALL, "roles": roles}
    hash = _put_unchecked(store, flow)
    tree = put_tree(store, {"a.txt": b"one\ntwo\n", NAMES[0]: ALL.encode(), "dir": {"b": b"b\n"}})
    (folder / "said").write_text(ALL + "\n")
    report = "printf '%s\\n' '```json' '{\"status\": \"done\"}' '```'"
    names = write_tree(folder / "names", {name: ALL.encode() for name in NAMES})
    works = f"echo three >>a.txt; rm './{NAMES[0]}'; cp {names}/* .; cat {folder}/said; {report}"
    once = folder / "once"
    tries = f"cat {folder}/said >&2; [ -e {once} ] || {{ touch {once}; exit 3; }}; {works}"
    says = Binding("command", shell(f"cat {folder}/said; {report}"))
    agents = {
        plan: says,
        code: Binding("command", shell(tries)),
        model: Binding("react", {"baseUrl": url, "model": PAYLOADS[12]}),
        last: says,
    }

    def begin(task: str = ALL, **more: Any) -> Thread:
        return lifecycle.create(
            store, ThreadRequest(hash, task, bound, RecordedState(tree), **more)
        )

    bound = agents
    ended = await carry_on(store, begin())
    bound = {**agents, plan: Binding("human", {"question": ALL})}
    asks = await carry_on(store, begin())
    bound = {**agents, plan: Binding("command", shell(f"cat {folder}/said >&2; exit 3"))}
    failed = await carry_on(store, begin())
    workflows.add(store, ONE)
    inner = {"a": {"name": "command", "config": says.config}}
    call = {"workflow": ONE["name"], "agents": inner, "input": ALL}
    bound = {**agents, plan: Binding("workflow", call), model: says}
    calls = await carry_on(store, begin())
    for child in calls.record["children"]:
        await carry_on(store, threads.get(store, child))
    request = PermissionRequest(PAYLOADS[5], PAYLOADS[6], ALL, PAYLOADS[7], PATCH, arguments=ALL)
    stored = store.put_node("content", {"text": json.dumps(asdict(request)), "artifacts": []}).hash
    question = store.put_node("content", {"text": request.text, "artifacts": [stored]}).hash
    permission = begin()
    set_head(store, permission.name, asks.hash, **{**asks.record, "question": question})
    runs = begin()
    intent = {**asks.record["intent"], "run": "0" * 32}
    set_head(store, runs.name, runs.hash, **{**runs.record, "intent": intent})
    (store.root / "live").mkdir(exist_ok=True)
    (store.root / "live" / intent["run"]).write_text(ALL.replace("\n", " ")[-4000:])
    for message in (ALL, PAYLOADS[14]):
        create.create(store, "app", folder / "names", message)
        (folder / "names" / "new").write_text(ALL)
    return Site(
        store.root,
        ended,
        asks,
        failed,
        threads.get(store, runs.id),
        threads.get(store, calls.id),
        session,
        threads.get(store, permission.id),
        list(threads.backwards(store, ended))[::-1],
        checkpoint.listing(store, "app"),
    )


def _put_unchecked(store: Store, flow: dict[str, Any]) -> NodeHash:
    """Puts a workflow past the check of its names, as one of another store could be."""
    with store.batch() as batch:
        roles = {}
        for key, one in flow["roles"].items():
            schema = batch.put_node("role-schema", one["schema"])
            roles[key] = batch.put_node("role", {**one, "schema": schema.hash}).hash
        found = batch.put_node("workflow", {**flow, "roles": roles}).hash
        batch.swap(HeadName("workflows/hostile"), None, Head(found, {}))
    return found
