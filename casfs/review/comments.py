"""The comments of a review and the messages in which they were sent, stored as one node.

The head `reviews/<thread>` leads to the newest node. A change is made on what the head leads to and
moves it, or is made again where another was faster: two reviewers at once lose nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from casfs.backend.protocols import Head, HeadName
from casfs.digest import NodeHash, ThreadId, TreeHash
from casfs.errors import CasfsError, Conflict, Invalid, NotFound, Refused
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms

HEADS = "reviews/"
FOLDER = "reviews"  # of the store: messages too long for a hook, diffs that are being edited
TAIL = 8  # characters of a thread's id by which its comments are named: 7QK3M2XA.3
MAX_TRIES = 20
MAX_TEXT_CHARS = 20_000
MAX_COMMENTS = 2000
DRAFT = "draft"
SENT = "sent"
HELD = "held"
HEARD = "heard"
HANDLED = "handled"
HOOK = "hook"  # a way of a round: between the calls of a prompt


@dataclass(frozen=True)
class Comment:
    """`tree`: in which the lines stand as they were commented on; `line`: the first, from 1, or 0
    for the file as a whole; `is_old`: they are of the state before the changes; `round`: in which
    it was sent, None for a draft. Times are in ms since 1970 UTC."""

    number: int
    tree: TreeHash
    path: bytes
    line: int
    count: int
    text: str
    is_old: bool = False
    suggestion: str | None = None
    round: int | None = None
    handled_at: int | None = None
    answer: str = ""


@dataclass(frozen=True)
class Round:
    """A message to the agent. `state`: sent, held or heard; `way`: by which it was offered last,
    empty for none, to the process `pid`; `offset`: bytes of the agent's transcript when it was
    sent."""

    message: NodeHash
    sent_at: int
    state: str = SENT
    way: str = ""
    offered_at: int = 0
    offset: int = 0
    pid: int = 0
    heard_at: int = 0


@dataclass(frozen=True)
class Review:
    """`viewed`: by path, the hash of the file when it was marked, empty where it was deleted."""

    thread: ThreadId
    comments: Sequence[Comment] = ()
    rounds: Sequence[Round] = ()
    viewed: Mapping[bytes, str] = field(default_factory=dict)

    @property
    def drafts(self) -> list[Comment]:
        return [comment for comment in self.comments if comment.round is None]

    @property
    def waiting(self) -> list[int]:
        """The numbers of the rounds that the agent has not heard."""
        numbered = enumerate(self.rounds, 1)
        return [number for number, sent in numbered if sent.state != HEARD]

    def state(self, comment: Comment) -> str:
        if comment.handled_at is not None:
            return HANDLED
        return DRAFT if comment.round is None else self.rounds[comment.round - 1].state

    def comment(self, number: int) -> Comment:
        """Raises NotFound."""
        for comment in self.comments:
            if comment.number == number:
                return comment
        raise NotFound(f"the review has no comment {self.label(number)}; `casfs review list` has")

    def label(self, number: int) -> str:
        """Returns the name of a comment that no other comment of the store has."""
        return f"{self.thread[-TAIL:]}.{number}"

    def with_comment(self, changed: Comment) -> Review:
        after = (changed if old.number == changed.number else old for old in self.comments)
        return replace(self, comments=tuple(after))

    def with_round(self, number: int, changed: Round) -> Review:
        rounds = [*self.rounds[: number - 1], changed, *self.rounds[number:]]
        return replace(self, rounds=tuple(rounds))


def head_name(thread: ThreadId) -> HeadName:
    return HeadName(HEADS + thread)


def load(store: Store, thread: ThreadId) -> Review:
    """Returns the review of a thread, an empty one where there is none. Raises Corrupt."""
    head = head_kinds.get(store.heads, head_name(thread))
    return Review(thread) if head is None else _parse(store, head.hash)


def unheard(store: Store) -> Iterator[ThreadId]:
    """Yields the threads whose agents have not heard all of their reviews."""
    for name, head in store.heads.list(HEADS, containing=['"waits":true']):
        if head_kinds.fault(name, head) is None and head.record["waits"]:
            yield ThreadId(name[len(HEADS) :])


def with_drafts(store: Store) -> Iterator[Review]:
    """Yields the reviews that have comments which were not sent."""
    for name, head in store.heads.list(HEADS):
        with suppress(CasfsError):  # it is damaged
            if head_kinds.fault(name, head) is None and (review := _parse(store, head.hash)).drafts:
                yield review


def change(store: Store, thread: ThreadId, make: Callable[[Review, Batch], Review]) -> Review:
    """Stores what `make` returns for a review as it is now; it may be called several times. Raises
    what it raises."""
    name = head_name(thread)
    for _ in range(MAX_TRIES):
        old = head_kinds.get(store.heads, name)
        before = Review(thread) if old is None else _parse(store, old.hash)
        try:
            with store.batch() as batch:
                after = make(before, batch)
                if after == before:
                    return before
                hash = batch.put_node("review", _payload(after)).hash
                batch.swap(name, old, Head(hash, {"waits": bool(after.waiting)}))
        except Conflict:
            continue
        return after
    raise Conflict(f"the review of thread {thread} changes all the time; try it again")


def add(review: Review, comment: Comment) -> Review:
    """Returns a review with one more draft, which gets the next number. Raises Invalid."""
    _check_text(comment.text, comment.suggestion)
    if len(review.comments) >= MAX_COMMENTS:
        raise Invalid(f"a review has {MAX_COMMENTS} comments at most; remove some drafts")
    number = max((old.number for old in review.comments), default=0) + 1
    return replace(review, comments=(*review.comments, replace(comment, number=number)))


def edit(review: Review, number: int, text: str, suggestion: str | None = None) -> Review:
    """Returns a review with another text of a draft. Raises NotFound, Refused, Invalid."""
    _check_text(text, suggestion)
    draft = _draft(review, number)
    return review.with_comment(replace(draft, text=text, suggestion=suggestion))


def remove(review: Review, number: int) -> Review:
    """Returns a review without a draft. Raises NotFound, Refused."""
    draft = _draft(review, number)
    return _without(review, [draft])


def move_drafts(store: Store, source: ThreadId, target: ThreadId) -> None:
    """Has the drafts of one thread be those of another, which goes on in its stead."""
    review = load(store, source)
    if not (drafts := review.drafts):
        return
    change(store, target, lambda old, _: reduce(add, drafts, old))
    change(store, source, lambda old, _: _without(old, drafts))


def _without(review: Review, drafts: Collection[Comment]) -> Review:
    left = tuple(comment for comment in review.comments if comment not in drafts)
    return replace(review, comments=left)


def handle(review: Review, number: int, answer: str) -> Review:
    """Returns a review in which a comment is said to be dealt with. Raises NotFound, Refused."""
    comment = review.comment(number)
    if comment.round is None:
        raise Refused(f"comment {review.label(number)} was never sent; `casfs review send` sends")
    answer = answer[:MAX_TEXT_CHARS]
    return review.with_comment(replace(comment, handled_at=now_ms(), answer=answer))


def _draft(review: Review, number: int) -> Comment:
    comment = review.comment(number)
    if comment.round is not None:
        raise Refused(f"comment {review.label(number)} was sent in round {comment.round}; it stays")
    return comment


def _check_text(text: str, suggestion: str | None) -> None:
    if not text.strip() and suggestion is None:
        raise Invalid("a comment needs a text, or a suggestion")
    if len(text) + len(suggestion or "") > MAX_TEXT_CHARS:
        raise Invalid(f"a comment has {MAX_TEXT_CHARS} characters at most")


# -- the node --------------------------------------------------------------------------


def _payload(review: Review) -> dict[str, Any]:
    return {
        "thread": review.thread,
        "comments": [_comment_payload(comment) for comment in review.comments],
        "rounds": [_camel(asdict(sent)) for sent in review.rounds],
        "viewed": {quote(path): hash for path, hash in review.viewed.items()},
    }


def _comment_payload(comment: Comment) -> dict[str, Any]:
    return {**_camel(asdict(comment)), "path": quote(comment.path)}


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    def name(text: str) -> str:
        first, *words = text.split("_")
        return first + "".join(map(str.capitalize, words))

    return {name(key): value for key, value in fields.items()}


def _snake(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_camel`."""
    return {
        re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", key): value
        for key, value in fields.items()
    }


def _parse(store: Store, hash: NodeHash) -> Review:
    payload = store.node(hash, "review").payload
    return Review(
        ThreadId(payload["thread"]),
        tuple(
            Comment(**{**_snake(comment), "path": unquote_to_bytes(comment["path"])})
            for comment in payload["comments"]
        ),
        tuple(Round(**_snake(sent)) for sent in payload["rounds"]),
        {unquote_to_bytes(path): digest for path, digest in payload["viewed"].items()},
    )
