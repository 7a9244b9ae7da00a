"""Push and pull that end early, killed or cut off by faults: the next one goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from casfs.errors import CasfsError, Unreachable
from casfs.remotes import push as pushing
from casfs.remotes.remote import Settings
from tests.support.fault_proxy import Cut, Dropped, Fault, FaultProxy, Lost, Request, Status
from tests.support.helpers import private_files
from tests.support.remotes import NAME, Site
from tests.support.s3_servers import S3Server

Sites = Callable[[Settings], Site]
NOISE = random.Random(7)
TREE = {
    **{f"file{n}": NOISE.randbytes(300_000) for n in range(12)},
    **{f"small{n}": NOISE.randbytes(700) for n in range(30)},
    "large": NOISE.randbytes(5 << 20),
}
PARTS = "import casfs.remotes.push as p; p.PLAIN_BYTES.update(nodes=1000, blobs=1 << 20)"
RUN = f"import sys; {PARTS}; from casfs.cli.main import main; sys.argv[0] = 'casfs'; main()"


@pytest.fixture
def through(proxy: FaultProxy, s3: S3Server) -> Settings:
    return Settings(s3.url(), proxy.endpoint)


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pushing.PLAIN_BYTES, "nodes", 1000)
    monkeypatch.setitem(pushing.PLAIN_BYTES, "blobs", 1 << 20)


When = Callable[[Request], bool]


def killed(one: Site, proxy: FaultProxy, when: When, fault: Fault, *arguments: str) -> bool:
    """Runs `casfs ARGUMENTS` in a process that is killed at the first request for which `when` is
    true, which then meets a fault as well. Returns False where it ended before."""
    process: list[subprocess.Popen[bytes]] = []
    proxy.reset()

    def rule(request: Request) -> Fault | None:
        if not when(request):
            return None
        os.kill(process[0].pid, signal.SIGKILL)
        return fault

    command = [sys.executable, "-c", RUN, "--store", str(one.root), *arguments]
    process.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    proxy.rule = rule
    code = process[0].wait(timeout=120)
    proxy.reset()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def is_put(request: Request, folder: str) -> bool:
    return request.method == "PUT" and f"/{folder}/" in request.path


def test_a_push_that_is_killed_goes_on(
    proxy: FaultProxy, through: Settings, sites: Sites, small_packs: None
) -> None:
    here, there = sites(through), sites(through)
    name = here.checkpoint("app", TREE)
    points: list[tuple[When, Fault]] = [
        (lambda request: proxy.count() == 2, Dropped()),
        (lambda request: is_put(request, "packs"), Lost()),
        (lambda request: is_put(request, "packs") and proxy.count("PUT") > 4, Dropped()),
        (lambda request: is_put(request, "log"), Dropped()),
    ]
    for when, fault in points:
        assert killed(here, proxy, when, fault, "push", NAME, "app")
        assert there.refs() == {}
    done = here.push("app")  # all packs are there: it sends the entry alone
    assert (done.refs, done.packs, done.nodes, done.blobs) == ([name], 0, 0, 0)
    there.pull()
    assert there.contents(name) == here.contents(name)


def test_a_push_that_is_killed_after_its_entry_arrived(
    proxy: FaultProxy, through: Settings, sites: Sites, small_packs: None
) -> None:
    here = sites(through)
    name = here.checkpoint("app", TREE)
    assert killed(here, proxy, lambda request: is_put(request, "log"), Lost(), "push", NAME, "app")
    assert set(here.refs()) == {name}
    assert here.push("app").unchanged == 1


def test_a_pull_that_is_killed_goes_on(
    proxy: FaultProxy, through: Settings, sites: Sites, small_packs: None
) -> None:
    here, there = sites(through), sites(through)
    name = here.checkpoint("app", TREE)
    here.push("app")
    for at in (3, 6, 9, 12, 15, 18, 21, 24):

        def when(request: Request, at: int = at) -> bool:
            return proxy.count() == at

        if not killed(there, proxy, when, Lost(), "pull", NAME):
            break
        assert there.heads() == {}
    there.pull()
    assert there.contents(name) == here.contents(name)
    there.store.close()
    assert private_files(there.root) == []


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize(
    "fault",
    [Lost(), Dropped(), Cut(100), Status(500), Status(503, "1", "SlowDown")],
    ids=lambda fault: type(fault).__name__ + str(getattr(fault, "code", "")),
)
def test_faults_that_pass(
    proxy: FaultProxy, through: Settings, sites: Sites, fault: Fault, method: str
) -> None:
    """Each request fails once; lost answers of a put-if-absent are not taken for a conflict."""
    here, there = sites(through), sites(through)
    name = here.checkpoint("app", {"a": b"1" * 3000, "b": {"c": b"2"}})
    failed: set[str] = set()

    def rule(request: Request) -> Fault | None:
        is_first = request.method == method and request.key not in failed
        failed.add(request.key)
        return fault if is_first else None

    proxy.rule = rule
    assert here.push("app").refs == [name]
    assert there.pull().refs == [name]
    assert there.contents(name) == here.contents(name)


def test_a_remote_that_is_gone(proxy: FaultProxy, through: Settings, sites: Sites) -> None:
    here = sites(through)
    here.checkpoint("app", {"a": b"1" * 3000})
    proxy.rule = lambda request: Status(403, error="AccessDenied")
    with pytest.raises(CasfsError):
        here.push("app")
    proxy.reset()
    assert len(here.push("app").refs) == 1


def test_few_requests_for_a_few_steps(proxy: FaultProxy, through: Settings, sites: Sites) -> None:
    from tests.support.thread_example import make_thread

    here, there = sites(through), sites(through)
    thread = make_thread(here.store, status="suspended")
    thread.steps_at_once(2000)
    here.push(thread.id)
    there.trust()
    there.pull()
    for _ in range(3):
        for number in range(10):
            detail = here.store.put(b"%d of %d" % (number, len(thread.steps))).hash
            thread.step("planner", f"Step {number}.", artifacts=[detail])
        proxy.reset()
        here.push(thread.id)
        assert proxy.count() <= 6, proxy.requests
        proxy.reset()
        there.pull(thread.id)
        assert proxy.count() <= 7, proxy.requests
        assert there.heads("threads/") == here.heads("threads/")


def test_nothing_of_a_push_stays_in_the_store(directory: Settings, sites: Sites) -> None:
    here = sites(directory)
    here.checkpoint("app", TREE)
    before = sorted(path for path in here.root.rglob("*") if path.is_file())
    here.push("app")
    after = sorted(path for path in here.root.rglob("*") if path.is_file())
    assert {path.name for path in set(after) - set(before)} <= {
        "state.db", "state.db-wal", "state.db-shm", "lock"
    }  # fmt: skip
    assert not any(Path(here.root / "remotes").rglob("*.pack"))


def test_what_another_push_has_left_is_not_taken_for_sent(
    directory: Settings, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack of nodes of two checkpoints arrived, their blobs did not; one of them is pushed."""
    here, there = sites(directory), sites(directory)
    first = here.checkpoint("first", {"a": NOISE.randbytes(5000)})
    second = here.checkpoint("second", {"b": NOISE.randbytes(5000)})
    with monkeypatch.context() as patched:
        packers = pushing.packers
        patched.setattr(pushing, "packers", lambda *all: (*packers(*all), failing))
        with pytest.raises(Unreachable):
            here.push("first", "second")
    packs = Path(urlsplit(directory.url).path, "packs")
    (blobs,) = [one for one in packs.iterdir() if one.stat().st_size > 9000]
    blobs.unlink()
    here.push("first")
    here.push("second")
    there.pull()
    for name in (first, second):
        assert there.contents(name) == here.contents(name)


def failing() -> None:
    raise Unreachable("the network is gone")
