"""A question to a person for whose answer the agent's process waits."""

from __future__ import annotations

import trio


class OpenQuestion:
    """Belongs to one trio loop. `is_over`: no answer is taken any more."""

    def __init__(self) -> None:
        self.is_over = False
        self._answer: str | None = None
        self._given = trio.Event()
        self._settled = trio.Event()
        self._is_accepted = False

    async def answer(self, seconds: float) -> str | None:
        """Waits for the answer; None where none comes in time."""
        with trio.move_on_after(seconds):
            await self._given.wait()
        self.is_over = True
        return self._answer

    async def give(self, answer: str) -> bool:
        """Returns whether the agent has taken the answer, which is durable then."""
        if self.is_over:
            return False
        self.is_over = True
        self._answer = answer
        self._given.set()
        await self._settled.wait()
        return self._is_accepted

    def settle(self, *, is_accepted: bool) -> None:
        self.is_over = True
        self._is_accepted = self._is_accepted or is_accepted
        self._settled.set()
