"""Measure the dashboard; prints Markdown.

    python -m benchmarks.web [PART …] [--threads N] [--steps N] [--files N] [--rate N] [--seconds N]
        [--viewers N] [--starts N] [--at-once N] [--dir DIR]

Parts: pages, latency, heap, viewers. Times of pages are a client's on loopback, a connection
each: our work, Hypercorn and the transfer. Steps are those of the engine, whose agents say 2 KB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import table
from benchmarks.engine_peers import Shape
from benchmarks.engine_runs import run_threads
from casfs.backend.derived import newest_move
from casfs.backend.protocols import Head
from casfs.digest import TreeHash
from casfs.store.nodes.directory import File, Subdirectory, encode
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread
from tests.support.browser import browser
from tests.support.web import Web, serving

BATCH = 500
FILES_PER_DIRECTORY = 50
ROUNDS = 20
REFRESH_S = 0.15  # as REFRESH_MS in casfs.js
DEFAULTS = {"threads": 10_000, "steps": 100_000, "files": 57_000}
DEFAULTS |= {"rate": 500, "seconds": 15, "viewers": 50, "starts": 5}
DEFAULTS |= {"at-once": 20}  # threads that run
# When a frame with a step in it was painted, for each step of the page.
SEEN = """
window.seen = {};
new MutationObserver(() => {
  const fresh = [...document.querySelectorAll("#thread [id^=step-]")]
    .map((one) => one.id.slice(5)).filter((index) => !(index in seen));
  for (const index of fresh) seen[index] = null;
  if (fresh.length) requestAnimationFrame(() => setTimeout(() => {
    for (const index of fresh) seen[index] = performance.timeOrigin + performance.now();
  }));
}).observe(document.querySelector("main"), { childList: true, subtree: true });
"""


def spread(values: Sequence[float], digits: int = 1) -> str:
    high = statistics.quantiles(values, n=20)[-1]
    return f"{statistics.median(values):,.{digits}f} ms, p95 {high:,.{digits}f} ms"


def steps(root: Path, shape: Shape, agent_s: float = 0) -> Thread:
    with Store.open(root) as store:
        return run_threads(store, shape, agent_s=agent_s)[1]


@contextmanager
def running(
    root: Path, at_once: int, rate: int, seconds: float
) -> Iterator[multiprocessing.process.BaseProcess]:
    """Steps in a process of its own, about so many a second."""
    shape = Shape(at_once, max(int(rate * seconds / at_once), 3), at_once=True)
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=steps, args=(root, shape, max(at_once / rate - 0.01, 0)))
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join()


def fill_board(store: Store, one: Thread, count: int) -> None:
    """Many threads with a task each; one in a hundred is suspended."""
    start, now = store.node(one.record["start"]).payload, int(time.time() * 1000)
    ended = {"status": "ended", "returnCode": 0, "cause": None, "reason": None, "intent": None}
    for first in range(0, count, BATCH):
        with store.batch() as batch:
            for number in range(first, min(first + BATCH, count)):
                task = f"Task {number}: mend the parser of module {number % 97}"
                input = batch.put_node("content", {"text": task, "artifacts": []}).hash
                node = batch.put_node("thread-start", {**start, "input": input}).hash
                record = {**one.record, "start": node, "updatedAt": now - number * 1000}
                head = Head(one.hash, record | (ended if number % 100 else {}))
                batch.swap(threads.head_name(threads.new_id()), None, head)


def put_tree(store: Store, files: int, variant: int) -> TreeHash:
    """A tree; each variant has other content in some 200 of its files."""
    with store.batch() as batch:
        directories = []
        for first in range(0, files, FILES_PER_DIRECTORY):
            entries = []
            for number in range(first, min(first + FILES_PER_DIRECTORY, files)):
                changed = number % (files // 200) == variant
                data = b"file %d of %d\n" % (number, changed and variant)
                entries.append(File(b"%06d.txt" % number, batch.put(data)))
            directories.append(Subdirectory(b"%06d" % first, batch.put_directory(encode(entries))))
        return batch.put_directory(encode(directories)).hash


def pages(root: Path, args: argparse.Namespace) -> None:
    deep = steps(root, Shape(1, args.steps)).id
    with Store.open(root) as store:
        fill_board(store, threads.get(store, deep), args.threads)
        base, *others = (put_tree(store, args.files, variant) for variant in range(ROUNDS + 1))
    starts = []
    for _ in range(args.starts):
        begin = time.perf_counter()
        with serving(root) as web:
            web.get("/")
            starts.append((time.perf_counter() - begin) * 1000)
    compare = [f"/compare?a={base}&b={other}" for other in others]
    paths = {
        f"board of {args.threads:,} threads": ["/"] * ROUNDS,
        f"a window of a thread of {args.steps:,} steps": [
            f"/threads/{deep}?from={args.steps * part // ROUNDS}" for part in range(1, ROUNDS)
        ],
        f"diff of two trees of {args.files:,} files": compare,
        "… the changed lines": [f"{path}&view=unified" for path in compare],
    }
    rows = [["start to the first page", spread(starts, 0), ""]]
    with serving(root) as web:
        for name, wanted in paths.items():
            taken = []
            for path in wanted[:1] + wanted:
                begin = time.perf_counter()
                web.get(path)
                taken.append((time.perf_counter() - begin) * 1000)
            rows.append([name, spread(taken[1:]), f"{taken[0]:.1f} ms"])
    table("Pages", ["", f"{ROUNDS} requests", "the first one"], rows)


def latency(root: Path, args: argparse.Namespace) -> None:
    with (
        serving(root) as web,
        browser(root.parent / "profile") as page,
        running(root, args.at_once, args.rate, args.seconds + 30),
    ):
        page.open(web.url)
        page.until(lambda: page.count("#running .cards > li") >= args.at_once, "running threads")
        with Store.open(root) as store:
            id = threads.list_threads(store)[0].id
            page.open(f"{web.origin}/threads/{id}")
            page.run(SEEN)
            before = newest_move(store.heads)
            time.sleep(args.seconds)
            rate = (newest_move(store.heads) - before) / args.seconds
            seen: dict[str, float] = page.run("return seen")
            nodes = threads.backwards(store, threads.get(store, id))
            ended = {str(one.payload["index"]): one.payload["completedAt"] for one in nodes}
    there = min(map(int, seen)) + 50  # steps that the first fetch brought
    found = [at - ended[step] for step, at in seen.items() if at and int(step) > there]
    row = [f"{rate:.0f}/s", f"{len(found)}", spread(found, 0), f"{max(found):.0f} ms"]
    table("From the end of an agent to the screen", ["steps", "seen", "", "latest"], [row])


def heap(root: Path, args: argparse.Namespace) -> None:
    with serving(root) as web, browser(root.parent / "profile") as page:
        page.open(web.url)
        for _ in range(9):
            page.driver.switch_to.new_window("tab")
            page.open(f"{web.origin}/")
        tabs = page.driver.window_handles
        before = page.heap()
        with running(root, args.at_once, 10_000, args.steps / 10_000) as process:
            process.join()
        used = [f"{count / 1e6:.1f} MB" for count in (before, page.heap())]
        made, begin = steps(root, Shape(1, 2)).id, time.monotonic()
        for tab in tabs:
            page.driver.switch_to.window(tab)
            page.until(lambda: made[-8:] in page.text(), "the thread in every tab")
        live = f"{(time.monotonic() - begin) * 1000:.0f} ms"
    header = ["at first", f"after {args.steps:,} steps", "a new thread in all ten, in turn"]
    table("Heap of a board, ten tabs open", header, [[*used, live]])


class Viewers:
    """Open pages without a browser: each has the events, and fetches its part as casfs.js does."""

    def __init__(self, web: Web, count: int, part: str | None) -> None:
        self.events = self.fetched = 0
        assert web.process is not None
        self._web, self._pid, self._part = web, web.process.pid, part
        for _ in range(count):
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        at = 0.0
        with self._web.events() as stream:
            for event in stream:
                self.events += 1
                moved = self._part and json.loads(event["data"]).get("names")
                if moved and (now := time.monotonic()) - at >= REFRESH_S:
                    at, headers = now, {"Cookie": self._web.cookie, "Casfs-Seq": event["id"]}
                    self._web.ask("GET", str(self._part), None, **headers)
                    self.fetched += 1

    def load(self, seconds: float) -> list[str]:
        """What the server needs."""
        before = self._now()
        time.sleep(seconds)
        busy, *counts = (b - a for a, b in zip(before, self._now(), strict=True))
        status = Path(f"/proc/{self._pid}/status").read_text()
        rss = int(status.partition("VmRSS:")[2].split()[0]) / 1000
        return [
            f"{busy / seconds:.1%}",
            f"{rss:.0f} MB",
            *(f"{one / seconds:.0f}" for one in counts),
        ]

    def _now(self) -> tuple[float, int, int]:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK"), self.events, self.fetched


def viewers(root: Path, args: argparse.Namespace) -> None:
    rows = []
    for name, part in (("the events alone", None), ("each with the board", "/?fragment=board")):
        with serving(root) as web:
            found = Viewers(web, args.viewers, part)
            time.sleep(min(3, args.seconds))
            rows.append([f"{name}, idle", *found.load(args.seconds)])
            with running(root, args.at_once, args.rate, args.seconds + 20):
                time.sleep(min(5, args.seconds))
                rows.append([f"{name}, {args.rate} steps/s", *found.load(args.seconds)])
    table(f"{args.viewers} viewers", ["", "of a core", "RSS", "events/s", "fetches/s"], rows)


PARTS = {one.__name__: one for one in (pages, latency, heap, viewers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--dir", type=Path, help="Where to work; else a temporary directory.")
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    for name in args.parts or PARTS:
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            root = Path(folder) / "store"
            Store.init(root).close()
            PARTS[name](root, args)


if __name__ == "__main__":
    main()
