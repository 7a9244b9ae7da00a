"""Step commit: a result becomes a thread-step, published in one transaction with the move of
the thread's head and the next pending step (`engine.threads.transitions.finish_step`).

What takes time is recorded first (`StepCommitter.record`); the step itself is built in the thread
that commits it (`engine.runtime.commit_queue`), so that a step is one way out of the daemon's
loop and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from casfs import canonical
from casfs.agents.payload_structure import redact_texts
from casfs.agents.secrets import put_work
from casfs.digest import TreeHash
from casfs.store.write_batch import Batch
from casfs.system import interruption
from casfs.system.clock import now_ms
from casfs.system.paths import printable
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.trees.diff import unified_diff
from casfs.trees.recorded_state import TIMES, RecordedState
from engine import content
from engine.blocking import blocking
from engine.moderator.decision import Decision
from engine.runtime import calls
from engine.runtime.attempt import StepResult, result_tokens
from engine.runtime.loaded_thread import LoadedThread
from engine.secrets import redaction
from engine.threads import transitions
from engine.threads.prompt_digest import PromptDigester
from engine.threads.record import step_limit

LARGE_BYTES = 8 << 10  # of changes, which are uploaded before other steps wait for this one


@dataclass
class UncommittedStep:
    """A step built from a result, in `batch`. `state`: of the directory after it; `tokens`: spent
    by the attempt; `summary`: of all steps before, if it carries one; `moved`: the thread after
    it."""

    batch: Batch
    payload: dict[str, Any]
    state: RecordedState | None
    output: str
    tokens: int
    summary: str | None = None
    moved: Thread = field(init=False)


class StepCommitter:
    """Records, builds and commits the steps of one thread run."""

    def __init__(self, loaded: LoadedThread) -> None:
        self._store = loaded.store
        self._head = loaded.head
        self._config = loaded.config
        self._history = loaded.history
        self._workspace = loaded.workspace
        self._services = loaded.services
        self._log = loaded.log
        self._prompts = PromptDigester()

    async def record(self, result: StepResult) -> None:
        """Adds to a result the tree that the agent left and its changes; cancels children that the
        agent did not wait for. Where the task is cancelled, nothing is added."""
        before = self._history.state
        if self._head.thread.intent["calls"]:
            await blocking(self._cancel_children)
        # Without either the thread has no directory.
        if before is not None or result.workspace is not None:
            await self._head.while_unreachable(partial(self._record, before, result))

    def _cancel_children(self) -> None:
        calls.cancel_children(self._store, self._head.thread, self._services.workspaces)

    def _record(self, before: RecordedState | None, result: StepResult) -> None:
        with interruption.interruptible(trio.from_thread.check_cancelled):
            if before is not None and not result.result.keeps_workspace:
                result.workspace = before
            elif result.workspace is None:
                result.workspace = self._workspace.record()
                self._log_report()
            old = None if before is None else before.tree
            after = result.workspace.tree
            # Before the step is put: what the agent printed may hold their values.
            self._config.read_private_files(result.workspace)
            self._log_files_with_secrets(old, after)
            if after != old:
                changes = unified_diff.patch(self._store, old, after)
                result.changes = changes
                # An upload: in the batch of the step, the commit of a group would wait for it.
                if self._head.is_shared and len(changes) > LARGE_BYTES:
                    with self._store.batch() as batch:
                        put_work(batch, changes)

    def build(self, result: StepResult) -> UncommittedStep:
        """Builds the pending step from its recorded result. In a worker thread."""
        # The detail of a cached result counts what was spent when it was made.
        spent = 0 if result.cached else result_tokens(self._store, result.result)
        batch = self._store.batch()
        payload = self._payload(batch, result)
        tokens = result.tokens + spent
        output = result.result.output
        return UncommittedStep(batch, payload, result.workspace, output=output, tokens=tokens)

    async def commit(self, build: Callable[[], UncommittedStep], decision: Decision) -> None:
        """Publishes the step that `build` returns, the move of the head and the next pending step
        in one transaction."""

        def prepare(current: Thread) -> UncommittedStep:
            step = build()
            self._finish(step, current, decision)
            return step

        step = await self._head.commit(self._services.commits, prepare)
        payload = step.payload
        hash = step.moved.hash
        # Not before the commit: the next step refers to the agent's node without putting it.
        self._config.recorded_agents[payload["role"]] = payload["agent"]
        self._history.add(hash, payload, step.state, output=step.output, summary=step.summary)

    def _finish(self, step: UncommittedStep, current: Thread, decision: Decision) -> None:
        record = current.record
        compact = record["compact"]  # may have changed since the step was built
        step.payload["compact"] = compact
        step.summary = None if compact is None else content.text(self._store, compact)
        rounds = step_limit(record, self._config.start)
        budget = self._config.budget
        step.moved = transitions.finish_step(
            step.batch,
            current,
            payload=step.payload,
            decision=decision,
            rounds=rounds,
            tokens=step.tokens,
            budget=budget,
            state=step.state,
        )

    def _payload(self, batch: Batch, result: StepResult) -> dict[str, Any]:
        """The payload of a thread-step; puts its content and its changes into `batch`."""
        thread = self._head.thread
        record = thread.record
        intent = thread.intent
        artifacts = list(dict.fromkeys([*result.extracted.refs, *result.result.artifacts]))
        # Rules ask for names and values of the role's schema, so these stay.
        meta = redact_texts(
            lambda: self._config.schemas[intent["role"]].document,
            dict(result.extracted.meta),
            self._config.secrets.redact_json,
        )
        payload: dict[str, Any] = {
            "index": intent["index"],
            "role": intent["role"],
            # as it is read back: the prompts of a restarted daemon must be the same
            "meta": canonical.decode(canonical.encode(meta)),
            "content": content.put(batch, result.result.output, artifacts),
            "detail": result.result.detail.hash,
            "agent": self._config.put_step_agent(batch, intent["role"]),
            "start": record["start"],
            **threads.links(self._history.hashes),
            "compact": record["compact"],
            "childThreads": calls.child_ends(self._store, thread) if intent["calls"] else [],
            "attempts": list(record["attempts"]),
            "extraction": result.extraction,
            "workspace": None if result.workspace is None else result.workspace.tree,
            "changes": put_work(batch, result.changes).hash if result.changes else None,
            "startedAt": intent["since"],
            "completedAt": now_ms(),
        }
        if result.workspace is not None and result.workspace.times is not None:
            payload[TIMES] = result.workspace.times
        # The schema of a step in a store of an older casfs lacks some of these.
        if "paused" in intent and "paused" in self._config.step_fields:
            payload["paused"] = intent["paused"]
        if "prompt" in self._config.step_fields:
            payload["prompt"] = self._prompt(intent["role"], result)
        if result.containment and "containment" in self._config.step_fields:
            payload["containment"] = result.containment
        if result.cached is not None:
            payload["cached"] = dict(result.cached)
        return payload

    def _prompt(self, role: str, result: StepResult) -> dict[str, Any]:
        """The digest of the prompt, and the nodes of its parts that the chain does not have."""
        record = self._head.thread.record
        prompt = result.prompt
        digest = self._prompts.digest(role, prompt)
        fields: dict[str, Any] = {"hash": digest.hash, "size": digest.size_bytes}
        # Only what this prompt had: after a correction the record still has the answer.
        if prompt.hint and (hint := record.get("hint")):
            fields["hint"] = hint
        if prompt.answer and (answer := record["answer"]):
            fields["answer"] = answer
        if prompt.correction and (correction := self._head.thread.intent.get("correction")):
            fields["correction"] = correction
        return fields

    def _log_report(self) -> None:
        """Logs which files are private, and which secrets are in the work."""
        report = self._workspace.take_report()
        thread = self._head.thread.id
        for path, why in report.local.items():
            self._log("private", thread=thread, path=printable(path), reason=why)
        for path, hits in report.exposed.items():
            hit = str(hits[0])
            self._log("secret in workspace", thread=thread, path=printable(path), found=hit)
        for path in report.purged:
            self._log("purged content left out", thread=thread, path=printable(path))
        for path, why in report.unreadable.items():
            self._log("unreadable, left out", thread=thread, path=printable(path), reason=why)

    def _log_files_with_secrets(self, before: TreeHash | None, after: TreeHash) -> None:
        """Logs the changed files that contain a secret: files are recorded unredacted. At the
        first step of a thread without a caller, all files are searched."""
        thread = self._head.thread
        # No step has searched what the thread began with; a caller's steps have.
        if not self._history.steps and not thread.record["parent"]:
            before = None
        log_fields = {"thread": thread.id, "index": thread.intent["index"]}
        exposed_files = redaction.files_with_secrets(
            self._store, self._config.secrets, before=before, after=after
        )
        for path, names in exposed_files:
            self._log("secret in workspace", **log_fields, path=path, variables=" ".join(names))
