"""`casfs agent test`: one run of an agent, with no daemon, in a temporary store and directory."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from casfs.agents.acp_profiles import install_hint
from casfs.cli.common import open_store
from casfs.cli.output import echo, echo_json, echo_line, json_option, wants_json
from casfs.cli.thread.arguments import parse_agent, text_or_file
from casfs.errors import CasfsError, Failed, Invalid, Suspended

TASK = "Report that you are ready, as the status."
SCHEMA = {"type": "object"}


@click.command()
@click.argument("name", metavar="NAME[:TEXT]")
@click.option("--task", default=TASK, metavar="TEXT|@FILE", help="Task (default: a trivial one).")
@click.option("--workspace", metavar="DIR", help="Work on a copy of DIR (default: empty).")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds.")
@json_option
def test(name: str, task: str, workspace: str | None, timeout: float) -> None:
    """Run an agent once on a small task; print its output, its report and how long it took.

    NAME is a profile, a package or an agent's hash, as for `thread start --agent`. No thread is
    made. Exits 1 where the agent fails or its output holds no JSON object, 7 where it asks
    a person.

    \b
    casfs agent test command:./run.sh --workspace .
    casfs agent test llm:small --task "Say hello"
    """
    from casfs.agents import Waiting
    from casfs.agents.messages import describe
    from engine.threads import role_agents

    spec = parse_agent(name, name)
    with open_store() as store:
        binding = role_agents.names(store, os.environ).resolved(spec)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="casfs-agent.") as folder:
        folder_path = Path(folder)
        if workspace is not None:
            shutil.copytree(workspace, folder_path / "workspace", symlinks=True)
        try:
            outcome = _run(folder_path, binding, task=text_or_file(task), timeout=timeout)
        except Waiting as question:
            raise Suspended(f"{name} asks a person: {question}") from None
        except CasfsError as error:
            raise type(error)(f"{name}: {error}") from None
        except Exception as error:  # third-party code may raise anything
            raise Failed(f"{name}: {describe(error)}") from None
    outcome["durationMs"] = round((time.monotonic() - began) * 1000)
    if wants_json():
        echo_json(outcome)
    else:
        echo(outcome["output"].rstrip("\n"))
        if outcome["fault"] is None:
            echo_line(f"-- meta: {json.dumps(outcome['meta'], ensure_ascii=False)}")
        echo(f"-- {outcome['durationMs'] / 1000:.2f} s")
    if outcome["fault"] is not None:
        raise Failed(f"{name}: the output has no usable report: {outcome['fault']}")


def _run(folder: Path, binding: Any, task: str, timeout: float) -> dict[str, Any]:
    """Returns the agent's output and the meta in it. Raises what the agent raises."""
    import trio

    from casfs.api.store import Store
    from casfs.testing import run_agent
    from engine.agents import loader, program
    from engine.output.parser import extract, role_schema
    from engine.secrets import redaction

    package = loader.resolve(binding.name, binding.version, binding.config)
    argv0 = program.first_word(binding.name, binding.config)
    if argv0 is not None and not argv0.startswith("./") and not program.exists(argv0, os.environ):
        raise Failed(f"no program {argv0}{install_hint(argv0)}")
    own = SimpleNamespace(package_descriptor=package.descriptor, create_agent=package.create)
    directory = folder / "workspace"
    directory.mkdir(exist_ok=True)
    hidden = redaction.from_env(package.secret_names(binding.config), os.environ)
    context = {"run": secrets.token_hex(16), "env": dict(os.environ), "secrets": hidden}
    with Store.init(folder / "store") as store:
        options: dict[str, Any] = {"timeout_s": timeout, "workspace": directory, **context}
        try:
            done = run_agent(own, binding.config, store=store, task=task, **options)
        except trio.TooSlowError:
            raise Failed(f"took longer than {timeout:g} s") from None
        output = hidden.redact(done.result.output)
        try:
            meta = dict(extract(output, role_schema(SCHEMA), store).meta)
        except Invalid as error:
            return {"output": output, "meta": None, "fault": str(error)}
    return {"output": output, "meta": meta, "fault": None}
