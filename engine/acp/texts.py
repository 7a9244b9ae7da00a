"""Texts of an agent that come in chunks."""

from __future__ import annotations

from casfs.system import surrogates

MESSAGE_GAP = "\n\n"


class ChunkedText:
    """The texts of one or more messages. The chunks of a message are joined as they are, messages
    are told apart by a blank line. A chunk without an id belongs to the newest message."""

    def __init__(self) -> None:
        self._messages: dict[str | None, list[str]] = {}
        self._newest: str | None = None

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, text: str, message: str | None) -> bool:
        """Adds a chunk; returns whether another message than that of the chunk before goes on."""
        has_text = bool(self)
        before = self._newest
        if message is None:
            message = self._newest
        elif self._newest is None and None in self._messages:
            self._messages[message] = self._messages.pop(None)
            before = message
        self._messages.setdefault(message, []).append(text)
        self._newest = message
        return has_text and before != message

    def raw(self) -> str:
        """Returns the text with halves of characters joined; it may hold lone ones."""
        joined = ("".join(chunks) for chunks in self._messages.values())
        return MESSAGE_GAP.join(surrogates.join(text) for text in joined)

    def text(self) -> str:
        return surrogates.replace_lone(self.raw())

    def lone_count(self) -> int:
        """Returns how many halves of characters stand alone."""
        return len(surrogates.LONE.findall(self.raw()))
