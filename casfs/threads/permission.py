"""What an agent asks permission for, as people are shown it: the files that it would change, or the
command that it would run.

It is the first artifact of the question's content node, whose text says the same.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self

from casfs.errors import CasfsError
from casfs.store.store import Store

ALLOW = "allow"
ALWAYS = "allow always"
DENY = "deny"
HOW = f"Answer `{ALLOW}`, `{ALWAYS}`, `{DENY}`, or a text: that denies it, and the agent reads it."


@dataclass(frozen=True)
class PermissionRequest:
    """`kind`: of the tool, in the agent's words; `command`: a line of a shell, None for another
    tool; `directory`: in which it runs, relative to the workspace; `patch`: of the files that it
    would change; `arguments`: JSON, of a tool for which that is all that is known."""

    title: str
    kind: str
    command: str | None = None
    directory: str = "."
    patch: str = ""
    arguments: str = ""

    @property
    def subject(self) -> str:
        """What it is about, without the title and how it is answered."""
        parts = []
        if self.command is not None:
            parts.append(f"$ {self.command}\nin {self.directory}")
        parts += [part.rstrip("\n") for part in (self.patch, self.arguments) if part]
        return "\n\n".join(parts)

    @property
    def text(self) -> str:
        """The whole question."""
        return f"The agent asks for permission: {self.title}\n\n{self.subject}\n\n{HOW}\n"

    def encode(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def of_question(cls, store: Store, question: str | None) -> Self | None:
        """Returns what a question asks permission for; None for another question."""
        with suppress(CasfsError, ValueError, TypeError):  # of another agent, or from elsewhere
            artifacts = store.node(question or "", "content").payload["artifacts"]
            for artifact in artifacts[:1]:
                request = cls(**json.loads(store.node(artifact, "content").payload["text"]))
                command = request.command
                fields = [value for value in asdict(request).values() if value is not None]
                is_whole = all(isinstance(value, str) for value in fields)
                return request if is_whole and (command is None or command) else None
        return None
