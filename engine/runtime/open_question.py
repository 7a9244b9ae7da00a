"""A question to a person for whose answer the agent's process waits."""

from __future__ import annotations

import trio


class OpenQuestion:
    """Belongs to one trio loop. `hash`: of its content node; `is_withdrawn`: its agent does not
    wait any more."""

    def __init__(self, hash: str | None) -> None:
        self.hash = hash
        self.is_withdrawn = False
        self._is_over = False  # no answer is taken any more
        self._answer: str | None = None
        self._given = trio.Event()
        self._settled = trio.Event()
        self._is_accepted = False

    async def answer(self, seconds: float) -> str | None:
        """Waits for the answer; None where none comes in time, or it is withdrawn."""
        with trio.move_on_after(seconds):
            await self._given.wait()
        self._is_over = True
        return self._answer

    async def give(self, answer: str) -> bool:
        """Returns whether the agent has taken the answer, which is durable then."""
        if self._is_over:
            await self.close()  # what became of the answer before is known then
            return False
        self._is_over = True
        self._answer = answer
        self._given.set()
        await self._settled.wait()
        return self._is_accepted

    async def withdraw(self) -> None:
        """The agent has gone on without the answer."""
        if not self._is_over:
            self.is_withdrawn = self._is_over = True
            self._given.set()
        await self.close()

    async def close(self) -> None:
        """Takes no answer from now on; one that is being taken is taken first."""
        self._is_over = True
        if self._given.is_set():
            await self._settled.wait()

    def settle(self, *, is_accepted: bool) -> None:
        self._is_over = True
        self._is_accepted = self._is_accepted or is_accepted
        self._settled.set()
