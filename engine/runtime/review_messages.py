"""What a person has said of an agent's work, as further prompts of the session at which it works.

A message counts as heard when the agent has answered the prompt that it was; of an attempt that
ended before, when a turn of it has the prompt.
"""

from __future__ import annotations

from dataclasses import replace

from casfs.digest import NodeHash
from casfs.review import comments, message
from casfs.review.comments import HEARD, Review
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.threads import attempt_details, threads
from casfs.threads.summary import content_text
from casfs.threads.threads import Thread
from engine.blocking import blocking
from engine.runtime.thread_head import ThreadHead

PROMPT = "prompt"  # a way of delivery


class ReviewMessages:
    """Of one attempt."""

    def __init__(self, store: Store, head: ThreadHead) -> None:
        self._store = store
        self._head = head
        # The agent has answered all of them when it asks for more.
        self._offered_rounds: set[int] = set()

    async def following(self) -> str:
        """Returns the next message; empty where none waits. The one before was answered."""
        return await blocking(lambda: self._following(self._head.thread))

    def _following(self, thread: Thread) -> str:
        if self._store.heads.get(comments.head_name(thread.id)) is None:
            return ""
        offered: dict[int, NodeHash] = {}

        def make(review: Review, batch: Batch) -> Review:
            offered.clear()
            prompts = self._prompts(thread) if review.waiting else []
            for number in review.waiting:
                sent = review.rounds[number - 1]
                mark = message.mark(thread.id, number)
                if number in self._offered_rounds or any(mark in prompt for prompt in prompts):
                    heard = replace(sent, state=HEARD, heard_at=now_ms())
                    review = review.with_round(number, heard)
                elif not offered:
                    offered[number] = sent.message
                    changed = replace(sent, way=PROMPT, offered_at=now_ms())
                    review = review.with_round(number, changed)
            return review

        comments.change(self._store, thread.id, make)
        # Not in `make`, which is called again after a conflict with another writer.
        self._offered_rounds |= offered.keys()
        return "".join(content_text(self._store, hash) for hash in offered.values())

    def _prompts(self, thread: Thread) -> list[str]:
        """Returns what the agent was given in earlier attempts at the step."""
        store = self._store
        hashes = list(threads.turns(store, thread.intent))
        entries = [*(thread.record.get("attempts") or ())]
        if "paused" in thread.intent:
            entries.append(thread.intent["paused"])
        for entry in entries:
            hashes += attempt_details.turns(store, entry)
        nodes = [node for node in map(store.node, hashes) if node.type == "react-turn"]
        return [content_text(store, node.payload["input"]) for node in nodes]
