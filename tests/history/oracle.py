"""Random histories of small trees, with the origin of every line kept beside them.

A text is a list of `Line`s, which an operation keeps, moves or makes. `origins` holds the versions
that may be named: one, where texts of lines are unique and the order of the kept ones is clear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random
from typing import Any

from casfs.backend.protocols import Head
from casfs.history.blame import blame
from casfs.history.versions import find
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ThreadId
from tests.support.helpers import put_tree
from tests.support.thread_example import Example, make_thread

PATHS = ("a.txt", "b.txt", "dir/c.txt", "dir/d.txt")
COMMON = (b"}\n", b"\n", b"x = 1\n")  # duplicate lines


@dataclass(frozen=True)
class Line:
    text: bytes
    origins: frozenset[str] = frozenset()  # none yet: of the version that is made


Text = tuple[Line, ...]
State = Mapping[str, Text]
Seen = dict[tuple[str, bytes], Text]


def joined(text: Text) -> bytes:
    return b"".join(line.text for line in text)


def is_binary(text: Text) -> bool:
    return b"\0" in joined(text)


def blamed(text: Text) -> Text:
    """What blame counts as lines: of a binary file one."""
    if is_binary(text):
        return (Line(joined(text), frozenset().union(*(line.origins for line in text))),)
    return text


def in_every_run(old: list[bytes], new: list[bytes]) -> tuple[set[bytes], set[bytes]]:
    """Of unique lines: those in every longest common subsequence, and those in some."""
    both = [line for line in new if line in old]
    place = {line: old.index(line) for line in both}
    before, after = [1] * len(both), [1] * len(both)
    for i in range(len(both)):
        for j in range(i):
            if place[both[j]] < place[both[i]]:
                before[i] = max(before[i], before[j] + 1)
    for i in reversed(range(len(both))):
        for j in range(i + 1, len(both)):
            if place[both[i]] < place[both[j]]:
                after[i] = max(after[i], after[j] + 1)
    longest = max(before, default=0)
    on = [i for i in range(len(both)) if before[i] + after[i] - 1 == longest]
    ranks = Counter(before[i] for i in on)
    return {both[i] for i in on if ranks[before[i]] == 1}, {both[i] for i in on}


def middles(*texts: list[bytes]) -> list[list[bytes]]:
    """Texts without the lines with which both begin, then those with which both end."""
    for _ in range(2):
        head = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
        texts = tuple(text[head:][::-1] for text in texts)
    return list(texts)


def matched(old: Text, new: Text, own: str) -> list[frozenset[str]]:
    """The origins of the lines of a text that came after another one; `own` where it wrote them."""
    mine = frozenset({own})
    if is_binary(old) or is_binary(new):
        return [mine] * len(new)
    before, after = [line.text for line in old], [line.text for line in new]
    counts, new_counts = Counter(before), Counter(after)
    origins = {
        text: frozenset().union(*(one.origins for one in old if one.text == text))
        for text in counts
    }
    once = [text for text in after if counts[text] == new_counts[text] == 1]
    every, some = in_every_run([text for text in before if text in once], once)
    is_unique = max(counts.values(), default=1) == max(new_counts.values(), default=1) == 1
    # Between equal ends a line may be the only one like it, so as good a match as a unique one.
    left, right = middles(before, after)
    single = {text for text in left if left.count(text) == right.count(text) == 1}
    fixed, _ = in_every_run(*([one for one in part if one in single] for part in (left, right)))
    is_ordered = fixed == single
    found = []
    for text in after:
        if counts[text] == 0:
            found.append(mine)
        elif text in once and (is_ordered or (is_unique and text in every)):
            found.append(origins[text])
        elif is_unique and text not in some:
            found.append(mine)
        else:
            found.append(mine | origins[text])
    return found


@dataclass
class World:
    """A thread as it grows, with its tree."""

    random: Random
    store: Store
    thread: Example
    state: State
    seen: Seen = field(default_factory=dict)
    fresh: Iterator[int] = field(default_factory=lambda: iter(range(1 << 30)))

    def __post_init__(self) -> None:
        self.note()

    @property
    def next_revision(self) -> str:
        return f"{self.thread.id}@{len(self.thread.steps) + 1}"

    def note(self) -> None:
        for path, text in self.state.items():
            self.seen.setdefault((path, joined(text)), text)

    # -- one step ---------------------------------------------------------------------------

    def step(self, new: State, called: list[World] | None = None) -> None:
        own = self.next_revision
        self.state = {path: self._text(path, text, new, own, called) for path, text in new.items()}
        self.note()
        self.thread.tree = put_tree(self.store, as_tree(self.state))
        ends = [child.thread.end() for child in called or ()]
        self.thread.step("planner", own, children=ends)

    def _text(
        self, path: str, text: Text, new: State, own: str, called: list[World] | None
    ) -> Text:
        old, data = self.state.get(path), joined(text)
        if old is not None and joined(old) == data:
            return old
        if (path, data) in self.seen:
            return self.seen[path, data]
        direct = self._direct(path, text, new, own)
        for child in reversed(called or ()):
            there = child.state.get(path)
            via = None if there is None else _via(there, text, own)
            direct = [
                _either(one, two, own) for one, two in zip(direct, via or direct, strict=True)
            ]
        if called and len(called) > 1:
            # What the second was given is compared with the step before, as one change: what the
            # first did in parts may be a rename.
            for one in (one for there in self.state.values() for one in there):
                direct = [
                    found | one.origins if line.text == one.text else found
                    for found, line in zip(direct, text, strict=True)
                ]
        return tuple(Line(line.text, one) for line, one in zip(text, direct, strict=True))

    def _direct(self, path: str, text: Text, new: State, own: str) -> list[frozenset[str]]:
        old, data = self.state.get(path), joined(text)
        if old is not None:
            return matched(old, text, own)
        same = [one for one, there in self.state.items() if joined(there) == data]
        same = [one for one in same if one not in new] or same
        if not same:  # perhaps a rename with an edit: `test_renames` has what is one
            gone = [line for one, there in self.state.items() if one not in new for line in there]
            return [
                frozenset({own}).union(*(old.origins for old in gone if old.text == line.text))
                for line in text
            ]
        columns = zip(*(self.state[one] for one in same), strict=True)
        return [frozenset().union(*(line.origins for line in column)) for column in columns]

    # -- operations -------------------------------------------------------------------------

    def line(self) -> Line:
        if self.random.random() < 0.25:
            return Line(self.random.choice(COMMON))
        ending = self.random.choice([b"\n", b"\n", b"\r\n"])
        return Line(b"line %d of %s" % (next(self.fresh), self.thread.id[-4:].encode()) + ending)

    def lines(self) -> Text:
        return tuple(self.line() for _ in range(self.random.randint(1, 5)))

    def edited(self) -> State:
        """The tree after a random operation, or several."""
        state = dict(self.state)
        for _ in range(self.random.choice([0, 1, 1, 1, 2])):
            self._edit(state)
        return state

    def _edit(self, state: dict[str, Text]) -> None:
        path = self.random.choice(PATHS)
        text = state.get(path, ())
        at = self.random.randint(0, len(text))
        end = self.random.randint(at, len(text))
        other = self.random.choice(PATHS)
        match self.random.choice(
            "insert insert replace delete move binary remove rename copy restore".split()
        ):
            case "insert":
                state[path] = text[:at] + self.lines() + text[at:]
            case "replace":
                state[path] = text[:at] + self.lines() + text[end:]
            case "delete" if text:
                state[path] = text[:at] + text[end:]
            case "move" if text and not is_binary(text):
                rest = text[:at] + text[end:]
                to = self.random.randint(0, len(rest))
                state[path] = rest[:to] + text[at:end] + rest[to:]
            case "binary":
                state[path] = (Line(b"\0%d\n" % next(self.fresh)),)
            case "remove":
                state.pop(path, None)
            case "rename" if text:
                state[other] = state.pop(path)
            case "copy" if text:
                state[other] = text
            case "restore" if known := [one for one in self.seen if one[0] == path]:
                state[path] = self.seen[self.random.choice(known)]


def _via(there: Text, text: Text, own: str) -> list[frozenset[str]]:
    if joined(there) == joined(text):
        return [line.origins for line in there]
    return matched(there, text, own)


def _either(direct: frozenset[str], via: frozenset[str], own: str) -> frozenset[str]:
    """What the calling step did not write itself was passed on, to the step before or the child."""
    if direct == {own}:
        return via
    return direct | via


def as_tree(state: State) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, text in state.items():
        folder, _, name = path.rpartition("/")
        (tree.setdefault(folder, {}) if folder else tree)[name] = joined(text)
    return tree


def start(store: Store, id: str, tree: str, parent: str | None = None, **record: Any) -> Example:
    """A thread that starts on a tree."""
    thread = make_thread(store, id, **record)
    payload = store.node(thread.start).payload
    made = store.put_node("thread-start", {**payload, "workspace": tree, "parentState": parent})
    thread.start, thread.tree = made.hash, tree
    thread.move(made.hash, start=made.hash)
    return thread


def fork(world: World, id: str) -> World:
    """A fork of a thread at its last step, which goes on by itself."""
    old = world.thread
    origin = {"thread": old.id, "step": len(old.steps)}
    head = Head(old.head.hash, {**old.head.record, "fork": origin})
    with world.store.batch() as batch:
        batch.swap(f"threads/{id}", None, head)
    thread = replace(old, id=id, head=head, steps=[*old.steps])
    return replace(world, thread=thread, state=dict(world.state), seen=dict(world.seen))


def call(world: World, id: str, before: World | None) -> World:
    """A called thread, which starts on the caller's tree, or on what the call before left."""
    giver = before or world
    parent = world.thread.steps[-1] if world.thread.steps else world.thread.start
    thread = start(world.store, id, giver.thread.tree, parent)
    return World(world.random, world.store, thread, dict(giver.state), fresh=world.fresh)


def check(world: World) -> None:
    """Compares blame with the origins that were kept."""
    place, _ = find(world.store, world.thread.id)
    for path, text in world.state.items():
        expected = blamed(text)
        found = blame(place, path.encode())
        texts = [None if is_binary(text) else line.text for line in expected]
        assert [one.text for one in found] == texts, path
        for one, line in zip(found, expected, strict=True):
            assert original(one.version.revision, world) in line.origins, (path, line)


def original(revision: str, world: World) -> str:
    """The name of a step by the thread that made it, where a fork shares it."""
    id, _, index = revision.partition("@")
    fork = threads.get(world.store, ThreadId(id)).record.get("fork")
    return f"{fork['thread']}@{index}" if fork and int(index) <= fork["step"] else revision
