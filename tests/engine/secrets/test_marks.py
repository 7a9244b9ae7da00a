"""Secrets that nobody named: in transcripts a mark stands for each, in files they stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.agents import messages
from casfs.agents.secret_marks import SecretMarks
from casfs.agents.secrets import NO_SECRETS, Secrets, put_work
from casfs.scanner import Scanner, fingerprint
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import live_output, prompts, threads
from casfs.threads.threads import ENDED
from engine.secrets import redaction
from engine.workflow import registry as workflows
from tests.scanner import samples
from tests.support.engine import ONE, Cli, daemon, shell

GITHUB, NPM = samples.github_token(), samples.build("npm-token")
MARK = "‹secret:github-token:1›"


def test_the_same_secret_has_the_same_number() -> None:
    secrets = Secrets({"KEY": "hunter2-hunter2"})
    said = f"{GITHUB} {NPM} {GITHUB} hunter2-hunter2"
    assert secrets.redact(said) == f"{MARK} ‹secret:npm-token:2› {MARK} $KEY"
    assert secrets.redact_bytes(NPM.encode()) == "‹secret:npm-token:2›".encode()
    assert secrets.redact_bytes(b"\0" + NPM.encode()) == "\0‹secret:npm-token:2›".encode()


def test_a_later_run_gives_other_numbers() -> None:
    secrets = Secrets({})
    assert secrets.redact(f"{MARK} ‹secret:jwt:7›") == f"{MARK} ‹secret:jwt:7›"
    assert secrets.redact(NPM) == "‹secret:npm-token:8›"


def test_a_name_tells_in_json_too() -> None:
    value = {"password": samples.word(20), "hash": "a" * 64, "token": "b" * 64, "n": [GITHUB, 1]}
    assert Secrets({}).redact_json(value) == {
        **value,
        "password": "‹secret:high-entropy:1›",
        "n": ["‹secret:github-token:2›", 1],
    }


def test_values_of_private_files() -> None:
    secrets = Secrets({}, private_values=["s3cr3t-value"])
    assert secrets.redact("it is s3cr3t-value") == "it is ‹secret:private:1›"
    copy = messages.to_secrets(json.loads(json.dumps(messages.from_secrets(secrets))))
    assert copy.redact(f"s3cr3t-value {GITHUB}") == "‹secret:private:1› ‹secret:github-token:2›"


def test_private_values_leave_definitions_and_names_as_they_are(disk_store: Store) -> None:
    """A private file may hold the name of a model or of a role."""
    value = "code-reviewer"
    secrets = Secrets({"KEY": "hunter2-hunter2"}, private_values=[value])
    store = redaction.redacting_store(disk_store, secrets)
    agent = {
        "package": "react",
        "version": "==1",
        "config": {"model": value, "x": "hunter2-hunter2"},
    }
    kept = disk_store.node(store.put_node("agent", agent).hash, "agent").payload
    assert kept["config"] == {"model": value, "x": "$KEY"}
    fields = {"role": value, "meta": {"said": value}}
    assert store.batch()._in_fields(fields, ["meta"]) == {  # type: ignore[attr-defined]  # of a step
        "role": value, "meta": {"said": "‹secret:private:1›"},
    }  # fmt: skip


@pytest.mark.parametrize(("text", "held"), [
    (b"a sentence. Its end.", 0),
    (b"a sentence. token1.", 7),
    (b"a word", 4),
    (b"dead" * 256 + b"\n", 0),
    (b"x " + b"dead" * 256, 1024),
])  # fmt: skip
def test_what_may_be_the_beginning_of_a_secret(text: bytes, held: int) -> None:
    assert Secrets({}).begins_at_end(text) == held


def test_numbers_go_on_in_bytes_too() -> None:
    assert (
        Secrets({})
        .redact_bytes(f"‹secret:jwt:7› {NPM}".encode())
        .endswith("‹secret:npm-token:8›".encode())
    )


def test_what_is_allowed_stays() -> None:
    allowed = Secrets({}, marks=SecretMarks(Scanner([fingerprint(GITHUB.encode())])))
    assert allowed.redact(f"{GITHUB} {NPM}") == f"{GITHUB} ‹secret:npm-token:1›"
    everything = Secrets({}, marks=SecretMarks(None))
    for secrets in (everything, Secrets({}) | everything, everything | Secrets({})):
        assert secrets.redact(GITHUB) == GITHUB


def test_the_settings_of_the_store(disk_store: Store) -> None:
    allowed = fingerprint(GITHUB.encode())
    (disk_store.root / "config.toml").write_text(f'[snapshot]\nallow = ["{allowed}"]\n')
    marks = redaction.new_marks(disk_store, {})
    assert marks.in_text(f"{GITHUB} {NPM}") == f"{GITHUB} ‹secret:npm-token:1›"


TEXTS = st.text("ab=: \n\"'\ud800é", max_size=30)
PARTS = st.lists(
    st.one_of(TEXTS, st.sampled_from([GITHUB, NPM, samples.private_key()])), max_size=6
)


@given(PARTS)
def test_what_is_marked_stays_as_it_is(parts: list[str]) -> None:
    """Else the digest of a prompt, which is of marked texts, would not hold."""
    once = Secrets({}).redact("".join(parts))
    assert Secrets({}).redact(once) == once


def test_trees_and_patches_are_the_work(store: Store) -> None:
    guarded = redaction.redacting_store(store, NO_SECRETS)
    with guarded.batch() as batch:
        patch = put_work(batch, f"+{GITHUB}\n".encode())
        blob = batch.put(f"+{GITHUB}\n".encode())
    assert store.get(patch.hash) == f"+{GITHUB}\n".encode()
    assert store.get(blob.hash) == f"+{MARK}\n".encode()


@pytest.mark.parametrize("piece", [1, 3, 7, 50])
def test_live_output_shows_none(piece: int, tmp_path: Path) -> None:
    key = samples.private_key()
    said = f"token: {GITHUB}\n{key}\npassword = '{samples.word(20)}'\nit is done. \n".encode()
    token = "0123456789abcdef" * 2
    with live_output.recording(tmp_path, token, Secrets({})) as live:
        for start in range(0, len(said), piece):
            live.write(said[start : start + piece])
        shown = live_output.read(tmp_path, token, 0).decode()
    assert shown.startswith(f"token: {MARK}\n‹secret:private-key:2›")
    assert shown.endswith("'‹secret:high-entropy:3›'\nit is done. \n")


# -- a whole thread -----------------------------------------------------------------------


def backwards(secret: str) -> str:
    """A shell's word for a secret: an agent with one in its config is refused."""
    return f"$(echo '{secret[::-1]}' | rev)"


SCRIPT = f"""
    cat >got
    echo {backwards(GITHUB)}; echo {backwards(NPM)} >&2
    echo "x = \\"{backwards(NPM)}\\"" >code.py
    printf '%s\\n' '```json' "{{\\"token\\": \\"{backwards(NPM)}\\"}}" '```'
"""


def test_an_agent_that_prints_two(disk_store: Store) -> None:
    root = disk_store.root
    workflows.add(disk_store, ONE)
    with daemon(root):
        id, open_id = (
            daemon_socket.request(
                root,
                "start",
                workflow="sample",
                input=f"Use {GITHUB}.",
                agents={"a": {"name": "command", "config": shell(SCRIPT)}},
                allow_secret=allow,
            )["id"]
            for allow in (False, True)
        )
        for one in (id, open_id):
            assert daemon_socket.request(root, "wait", id=one)["status"] == ENDED
    thread = threads.get(disk_store, threads.ThreadId(id))
    [step] = threads.backwards(disk_store, thread)
    assert step.payload["meta"] == {"token": "‹secret:npm-token:2›"}
    prompt = prompts.of_step(disk_store, thread, step)
    assert prompt.fault is None
    assert f"Use {MARK}." in prompt.text
    # The file that it wrote is private, so it is not in the diff.
    assert NPM.encode() not in disk_store.get(step.payload["changes"])
    files = {f'x = "{NPM}"\n'.encode(), prompt.text.encode()}
    spoken = {step.hash, step.payload["content"], step.payload["detail"], step.payload["start"]}
    for hash in spoken:
        data = disk_store.get(hash)
        assert GITHUB.encode() not in data
        assert NPM.encode() not in data or data in files
    allowed = threads.get(disk_store, threads.ThreadId(open_id))
    [step] = threads.backwards(disk_store, allowed)
    assert GITHUB in prompts.of_step(disk_store, allowed, step).text
    assert prompts.of_step(disk_store, allowed, step).fault is None


def test_a_secret_in_a_definition_is_refused(cli: Cli, tmp_path: Path) -> None:
    with Store.open(cli.root) as store:
        workflows.add(store, ONE)
    token = {"--agent": f"a=command:echo {GITHUB}", "--name": "n"}
    named = {"--agent": "a=command:true", "--name": GITHUB}
    summariser = {"--compact-above": "9", "--compact-by": f"command:echo {GITHUB}"}
    with daemon(cli.root):
        for options in (token, named, {"--agent": "a=command:true", **summariser}):
            words = [word for option in options.items() for word in option]
            refused = cli("thread", "start", "sample", "--input", "x", *words, code=4)
            assert "what looks like a secret (github-token), and would be recorded" in refused.err
        flow = tmp_path / "flow.json"
        flow.write_text(json.dumps({**ONE, "description": f"with {GITHUB}"}))
        assert "a secret (github-token)" in cli("workflow", "add", flow, code=4).err
        assert not cli("grep", GITHUB, code=1).out
        words = [word for option in token.items() for word in option]
        cli("thread", "start", "sample", "--input", "x", "--allow-secret", *words)
