"""What an agent is handed for a try: its prompt and place, and the ways back to the engine.

By these it tells of its processes and turns and has threads run for it; each is durable in the
thread's head before it goes on, so a crash loses none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from casfs.agents import AgentContext
from casfs.agents.prompt import Prompt
from casfs.store import Store
from casfs.threads import Thread
from engine import content, processes
from engine.blocking import blocking
from engine.runtime.calls import ThreadCalls, ThreadRunner
from engine.runtime.step_cache import StepInputs
from engine.runtime.thread_config import ThreadConfig
from engine.runtime.thread_head import ThreadHead
from engine.threads import transitions
from engine.threads.record import Intent


@dataclass(frozen=True)
class AgentContextBuilder:
    """`store` hides the thread's secrets; `nest` runs the threads that agents call; `workspace`
    is None for a thread without one."""

    store: Store
    hold: ThreadHead
    script: ThreadConfig
    env: Mapping[str, str]
    nest: ThreadRunner
    workspace: Path | None

    async def context(self, intent: Intent, prompt: Prompt, tree: str | None) -> AgentContext:
        """`tree`: what the step starts from."""
        said: str | None = self.hold.thread.record["answer"]
        return AgentContext(
            thread=self.hold.thread.id,
            role=intent["role"],
            step=intent["index"],
            prompt=prompt,
            workspace=self.workspace,
            store=self.store,
            depth=self.script.start["depth"],
            run=intent["run"],
            env=self.env,
            started=self._started,
            turn=self._turn,
            call=ThreadCalls(self.store, self.env, self.hold, self.nest, tree),
            answer=said and await blocking(lambda: content.text(self.store, said)),
            parent=self.script.start["parentState"],
            agent=self.script.agents[intent["role"]],
            secrets=self.script.secrets,
        )

    def question(self, intent: Intent, prompt: Prompt, tree: str | None) -> StepInputs:
        """The same, as the cache asks it."""
        return StepInputs(
            self.script.flow.roles[intent["role"]],
            intent["role"],
            intent["index"],
            self.script.start["depth"],
            self.script.agents[intent["role"]],
            prompt,
            tree,
            self.env,
        )

    async def _started(self, pid: int) -> None:
        """Make a process of the step in flight known before it matters."""
        known = {"pid": pid, "pidStart": processes.start_time(pid)}

        def note(now: Thread) -> Thread:
            return transitions.update_record(
                self.store, now, intent={**now.record["intent"], **known}
            )

        await self.hold.move(note)

    async def _turn(self, hash: str) -> None:
        """Show a turn of the step in flight."""
        await self.hold.move(lambda now: transitions.add_turn(self.store, now, hash))
