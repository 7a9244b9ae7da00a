"""Digests of the prompts of a running thread, at a cost that does not grow with its length.

Each prompt of a role repeats the one before up to the end of its history. So what was hashed up to
there is kept for each role, and only the new steps and the rest are hashed for the next prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from casfs.agents.prompt import AFTER, EarlierStep, Prompt
from casfs.digest import BlobHash, Digest, Hasher


class PromptDigester:
    """Belongs to one thread run."""

    def __init__(self) -> None:
        self._roles: dict[str, _Prefix] = {}

    def digest(self, role: str, prompt: Prompt) -> Digest:
        """Returns the digest of `prompt.text()`."""
        head = prompt.system.strip() + AFTER(prompt.before_history())
        prefix = self._roles.get(role)
        if prefix is None or not prefix.begins(head, prompt.history):
            prefix = self._roles[role] = _Prefix(head)
        return prefix.digest(prompt.history, prompt.after_history())


class _Prefix:
    """What was hashed of a role's prompts: `head`, and the first `_count` steps."""

    def __init__(self, head: str) -> None:
        data = head.encode()
        self._head = head
        self._hasher = Hasher(data)
        self._size = len(data)
        self._count = 0
        self._last: EarlierStep | None = None

    def begins(self, head: str, steps: Sequence[EarlierStep]) -> bool:
        if head != self._head or len(steps) < self._count:
            return False
        return self._count == 0 or steps[self._count - 1] is self._last

    def digest(self, steps: Sequence[EarlierStep], tail: str) -> Digest:
        for step in steps[self._count :]:
            data = AFTER(step.text()).encode()
            self._hasher.update(data)
            self._size += len(data)
            self._count = self._count + 1
            self._last = step
        data = tail.encode()
        hasher = self._hasher.copy()
        hasher.update(data)
        return Digest(BlobHash(hasher.hexdigest()), self._size + len(data))
