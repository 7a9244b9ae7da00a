"""What an agent asks permission for, as people are shown it: the files that it would change, or the
command that it would run.

It is the first artifact of the question's content node, whose text says the same.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.system import foreign_json

ALLOW = "allow"
ALWAYS = "allow always"
DENY = "deny"
DENIAL = "deny: "  # begins an answer that says why
SHORT_LINES = 40  # of a subject that is read at one look
SHORT_CHARS = 4000
HOW = (
    f"Answer `{ALLOW}`, `{ALWAYS}` (all of the kind `{{}}`, while this step is pending), `{DENY}`,"
    f" or a text: that denies it, and the agent reads it."
)


@dataclass(frozen=True)
class PermissionRequest:
    """`kind`: of the tool, in the agent's words; `command`: a line of a shell, None for another
    tool; `directory`: in which it runs, relative to the workspace; `patch`: of the files that it
    would change; `arguments`: JSON, what else the tool is given; `is_cut`: not all of it is
    there."""

    title: str
    kind: str
    command: str | None = None
    directory: str = "."
    patch: str = ""
    arguments: str = ""
    is_cut: bool = False

    @property
    def subject(self) -> str:
        """What it is about, without the title and how it is answered."""
        parts = []
        if self.command is not None:
            parts.append(f"$ {self.command}\nin {self.directory}")
        parts += [part.rstrip("\n") for part in (self.patch, self.arguments) if part]
        if self.is_cut:
            parts.append("It is too long to be shown whole.")
        return "\n\n".join(parts)

    @property
    def is_short(self) -> bool:
        """Whether all of it is read at one look."""
        subject = self.subject
        is_long = len(subject) > SHORT_CHARS or subject.count("\n") > SHORT_LINES
        return not is_long and not self.is_cut

    @property
    def text(self) -> str:
        """The whole question."""
        how = HOW.format(self.kind)
        return f"The agent asks for permission: {self.title}\n\n{self.subject}\n\n{how}\n"

    @classmethod
    def of_question(cls, store: Store, question: str | None) -> Self | None:
        """Returns what a question asks permission for; None for another question."""
        with suppress(CasfsError, ValueError, TypeError):  # of another agent, or from elsewhere
            artifacts = store.node(question or "", "content").payload["artifacts"]
            for artifact in artifacts[:1]:
                text = store.node(artifact, "content").payload["text"]
                request = cls(**foreign_json.parse(text))
                return request if request._is_whole else None
        return None

    @property
    def _is_whole(self) -> bool:
        texts = (self.title, self.kind, self.directory, self.patch, self.arguments)
        is_command = self.command is None or (isinstance(self.command, str) and self.command)
        return all(isinstance(text, str) for text in texts) and bool(is_command)
