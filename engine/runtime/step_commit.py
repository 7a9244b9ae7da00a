"""Step commit: a result becomes a thread-step, published in one transaction with the move of
the thread's head and the next pending step (`engine.threads.transitions.commit_step`).

`StepCommitter.build` runs in the worker thread that parsed the agent's output, while the thread
head is locked. Where the next decision does not depend on the step, it commits at once, without
another hop through the daemon's loop; else `ThreadRun` decides and calls `commit`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import trio

from casfs import canonical, threads
from casfs.digest import TreeHash
from casfs.store import Store
from casfs.system import interruption
from casfs.system.clock import now_ms
from casfs.system.log import Log
from casfs.trees.diff import unified_diff
from casfs.write_batch import Batch
from engine import content
from engine.moderator import decision as moderator
from engine.moderator.decision import Decision
from engine.runtime import calls
from engine.runtime.attempt import StepResult
from engine.runtime.thread_config import ThreadConfig
from engine.runtime.thread_head import ThreadHead
from engine.runtime.workspace import Workspace, Workspaces
from engine.secrets import redaction
from engine.threads import transitions
from engine.threads.history import ThreadHistory
from engine.threads.prompt_digest import PromptDigester
from engine.threads.record import Intent, step_limit


@dataclass
class UncommittedStep:
    """A step built from a result. `batch` holds it until it is `committed`; `tokens`: spent by
    the attempt; `duration_ms`: of the attempt, 0 on a cache hit."""

    batch: Batch
    payload: dict[str, Any]
    output: str
    tokens: int
    duration_ms: int = 0
    committed: bool = False


@dataclass(frozen=True)
class StepCommitter:
    """Builds and commits the steps of one thread run. `store` redacts the thread's secrets."""

    store: Store
    head: ThreadHead
    config: ThreadConfig
    history: ThreadHistory
    workspace: Workspace
    workspaces: Workspaces
    log: Log
    prompts: PromptDigester = field(default_factory=PromptDigester)

    def build(self, intent: Intent, result: StepResult, tokens: int) -> UncommittedStep:
        """Builds the step of a result, and commits it if the next decision is unconditional.
        Records the workspace, which is given up when the thread's task is cancelled; cancels
        children that the agent did not wait for."""
        before = self.history.tree
        with interruption.interruptible(trio.from_thread.check_cancelled):
            if before is not None and result.workspace is None:
                result = replace(result, workspace=self.workspace.record())
                self._log_secret_names()
            if result.workspace is not None:
                self._log_files_with_secrets(before, result.workspace)
        if self.head.thread.record["intent"]["calls"]:
            calls.cancel_children(self.store, self.head.thread, self.workspaces)
        batch = self.store.batch()
        payload = self._payload(batch, intent, result)
        step = UncommittedStep(batch, payload, result.result.output, tokens)
        decision = moderator.unconditional(self.config.flow.rules, intent["role"])
        if decision is not None:
            self.commit(step, decision)
        return step

    def commit(self, step: UncommittedStep, decision: Decision) -> None:
        """Publishes the step, the move of the head and the next pending step together."""
        now = self.head.thread
        step.payload["compact"] = now.record["compact"]  # may have changed since it was built
        with step.batch as batch:
            rounds, budget = step_limit(now.record, self.config.start), self.config.budget
            moved = transitions.commit_step(
                batch, now, step.payload, decision, rounds, step.tokens, budget
            )
        self.head.thread, step.committed = moved, True
        self.config.recorded_agents[step.payload["role"]] = step.payload["agent"]
        self.history.add(moved.hash, step.payload, step.output)

    def _payload(self, batch: Batch, intent: Intent, step: StepResult) -> dict[str, Any]:
        """The payload of a thread-step; puts its content and its changes into `batch`."""
        thread, before = self.head.thread, self.history.tree
        called = thread.record["intent"]["calls"]
        artifacts = list(dict.fromkeys([*step.extracted.refs, *step.result.artifacts]))
        changed = step.workspace != before
        changes = unified_diff.patch(self.store, before, step.workspace) if changed else b""
        payload: dict[str, Any] = {
            "index": intent["index"],
            "role": intent["role"],
            # as it is read back: the prompts of a restarted daemon must be the same
            "meta": canonical.decode(canonical.encode(dict(step.extracted.meta))),
            "content": content.put(batch, step.result.output, artifacts),
            "detail": step.result.detail.hash,
            "agent": self.config.put_step_agent(batch, intent["role"]),
            "start": thread.record["start"],
            **threads.links(self.history.hashes),
            "compact": thread.record["compact"],
            "childThreads": calls.child_ends(self.store, thread) if called else [],
            "attempts": list(thread.record["attempts"]),
            "extraction": step.extraction,
            "workspace": step.workspace,
            "changes": batch.put(changes).hash if changes else None,
            "startedAt": intent["since"],
            "completedAt": now_ms(),
        }
        if self.config.records_prompts:
            payload["prompt"] = self._prompt(intent["role"], step)
        return payload if step.cached is None else {**payload, "cached": dict(step.cached)}

    def _prompt(self, role: str, step: StepResult) -> dict[str, Any]:
        """The digest of the prompt, and the nodes of its parts that the chain does not have."""
        record, digest = self.head.thread.record, self.prompts.digest(role, step.prompt)
        parts = {
            "hint": step.prompt.hint and record.get("hint"),
            "answer": step.prompt.answer and record["answer"],
            "correction": step.prompt.correction and record["intent"].get("correction"),
        }
        found = {"hash": digest.hash, "size": digest.size_bytes}
        return found | {name: hash for name, hash in parts.items() if hash}

    def _log_secret_names(self) -> None:
        """Log recorded files that look like secrets, each once."""
        paths = self.workspace.new_secrets()
        if paths:
            self.log("recorded, and may be secret", thread=self.head.thread.id, paths=paths)

    def _log_files_with_secrets(self, before: TreeHash | None, after: TreeHash) -> None:
        """Logs the changed files that contain a secret: files are recorded unredacted. At the
        first step of a thread without a caller, all files are searched."""
        thread = self.head.thread
        if not self.history.steps and not thread.record["parent"]:
            before = None
        place = {"thread": thread.id, "index": thread.record["intent"]["index"]}
        found = redaction.files_with_secrets(self.store, self.config.secrets, before, after)
        for path, names in found:
            self.log("secret in workspace", **place, path=path, variables=" ".join(names))
