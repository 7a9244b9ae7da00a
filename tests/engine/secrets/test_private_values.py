"""What an agent writes into a private file is a secret of its thread from then on."""

from __future__ import annotations

from pathlib import Path

from casfs.agents import messages
from casfs.agents.secrets import Secrets, secrets_of
from casfs.digest import NodeHash, TreeHash
from casfs.store.store import Store
from casfs.threads import prompts, threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from casfs.trees import recorded_state
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from engine.secrets import redaction
from engine.threads.suspension import resume
from tests.scanner import samples
from tests.support.engine import begin, carry_on, fork, loop, says, states, steps
from tests.support.helpers import put_tree

VALUE = "purple-Elephant-walks-home"  # which no rule of the scanner knows
OTHER = "yellow-Giraffe-sleeps-late"
WRITE_THEN_PRINT = """
    cat >/dev/null
    if test -e .env; then cat .env; cat .env >&2; else cp {} .env; fi
"""


def transcript(store: Store, thread: Thread) -> str:
    """All that the steps of a thread say, with their prompts."""
    said = [repr(dict(thread.record))]
    for step in threads.backwards(store, thread):
        prompt = prompts.of_step(store, thread, step)
        assert prompt.fault is None
        detail = store.node(NodeHash(step.payload["detail"])).payload
        streams = [store.get(detail[name]).decode() for name in ("stdout", "stderr")]
        content = store.node(step.payload["content"], "content").payload["text"]
        said += [repr(step.payload), prompt.text, content, repr(detail), *streams]
    return "\n".join(said)


async def test_a_value_that_the_step_before_wrote(disk_store: Store, tmp_path: Path) -> None:
    assert VALUE in Secrets({}).redact(f"NOTE={VALUE}")
    made = tmp_path / "made"
    made.write_text(f"NOTE={VALUE}\n")
    place = put_tree(disk_store, {"a": b"a"})
    agents = {"a": says({}, WRITE_THEN_PRINT.format(made))}
    thread = await carry_on(disk_store, begin(disk_store, loop(3), agents, place))
    assert thread.status == ENDED, thread.record["reason"]
    text = transcript(disk_store, thread)
    assert VALUE not in text
    assert text.count("NOTE=‹secret:private:1›") >= 4  # outputs of two steps, and a prompt
    [*_, last] = states(disk_store, thread)
    assert VALUE.encode() in disk_store.get(redacted_file(disk_store, last))


def redacted_file(store: Store, state: RecordedState) -> str:
    files = store.node(state.full, "directory").payload["files"]
    [found] = [file for file in files if file["name"] == ".env"]
    return str(found["digest"]["hash"])


async def test_a_step_that_prints_what_it_writes(disk_store: Store) -> None:
    script = f"cat >/dev/null; echo 'NOTE={VALUE}' >.env; cat .env"
    place = put_tree(disk_store, {"a": b"a"})
    thread = await carry_on(disk_store, begin(disk_store, loop(1), {"a": says({}, script)}, place))
    [step] = steps(disk_store, thread)
    output = disk_store.node(NodeHash(step["content"]), "content").payload["text"]
    assert "NOTE=‹secret:private:1›" in output


USUAL = {  # of a `.env`: name, value, whether an output may show it
    "DB_PASSWORD": ("abc9", False),
    "API_KEY": ("correcthorse", False),
    "PIN_SECRET": ("4711", False),
    "AUTH_TOKEN": ("a/b.c;d,e{f}", False),
    "PROXY_CRED": ("user:pa55", False),
    "SESSION": ("x9-y8-z7", False),
    "NODE_ENV": ("production", True),
    "PROJECT": ("shop-front", True),
    "DB_HOST": ("db.example.org", True),
    "PORT": ("54321", True),
    "SECRETS_ON": ("true", True),
}


async def test_usual_values_of_an_environment(disk_store: Store) -> None:
    env = "".join(f"{name}={value}\n" for name, (value, _) in USUAL.items())
    env += 'TLS_KEY="MIIEvQIBADANBgkqhkiG\nw0BAQEFAASCBKcwggSj"\n'
    script = "cat >/dev/null; sed 's/^[A-Z_]*=/v: /' .env; sed -n '/^w0/p' .env; cat README"
    place = put_tree(disk_store, {"README": b"the shop-front\n", ".env": env.encode()})
    state = recorded(disk_store, place)
    thread = await carry_on(disk_store, begin(disk_store, loop(1), {"a": says({}, script)}, state))
    [step] = steps(disk_store, thread)
    output = disk_store.node(NodeHash(step["content"]), "content").payload["text"]
    for name, (value, is_shown) in USUAL.items():
        assert (f"v: {value}\n" in output) == is_shown, name
    assert "MIIEvQIB" not in output
    assert "w0BAQEFA" not in output
    assert "the shop-front\n" in output


def recorded(store: Store, full: TreeHash) -> RecordedState:
    with store.batch() as batch:
        return recorded_state.divide(store, batch, DatedTree(full), [b".env"])


def test_a_store_knows_values_that_are_added(store: Store) -> None:
    secrets = Secrets({"KEY": "hunter2-hunter2"})
    guarded = redaction.redacting_store(store, secrets)
    secrets.add_private([VALUE])
    secrets.add_private([OTHER])
    with guarded.batch() as batch:
        said = batch.put(f"{OTHER} {VALUE} hunter2-hunter2".encode())
    assert store.get(said.hash) == "‹secret:private:2› ‹secret:private:1› $KEY".encode()
    assert secrets_of(guarded) is secrets


# -- numbers of marks -------------------------------------------------------------------------

GITHUB, NPM = samples.github_token(), samples.build("npm-token")


async def test_another_run_gives_another_number(store: Store, tmp_path: Path) -> None:
    """The second value is not in a text with the mark of the first one."""
    told = tmp_path / "told"
    told.write_text(GITHUB)
    script = f"cat >/dev/null; cat {told} >&2; exit 3"
    agents = {"a": says({}, script)}
    first = await carry_on(store, begin(store, loop(1), agents))
    assert first.status == SUSPENDED
    assert first.record["secretMarks"] == 1
    assert "secretMarks" in fork(store, first, 0).record
    told.write_text(NPM)
    second = await carry_on(store, resume(store, threads.get(store, first.id)))
    assert second.record["secretMarks"] == 2
    assert "‹secret:npm-token:2›" in second.record["reason"]


def test_a_worker_goes_on_with_the_numbers_of_its_run() -> None:
    secrets = Secrets({}, [OTHER, VALUE])
    secrets.redact(GITHUB)
    copy = messages.to_secrets(messages.from_secrets(secrets))
    said = f"{VALUE} {OTHER} {GITHUB}"
    assert copy.redact(said) == secrets.redact(said)
    assert copy.redact(NPM) == "‹secret:npm-token:4›"
