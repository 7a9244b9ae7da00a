"""Reads the candidates of an output: which fit the role-schema, and what the others lack.

A large output is read in a subprocess, which can be killed. It limits itself by means of the
kernel, so it ends even where the daemon was killed meanwhile; stdin and stdout are marshalled.
"""

from __future__ import annotations

import marshal
import resource
import signal
import subprocess
import sys
from typing import Any, TypeAlias

from casfs import canonical
from casfs.errors import Failed, Invalid
from casfs.store.nodes.schema import Schema
from casfs.system import cycles
from engine.output.blocks import candidates

CPU_LIMIT_S = 10
MEMORY_LIMIT_BYTES = 1 << 30  # of address space
TIMEOUT_S = 60  # however busy the machine is
ROLE_KEYWORDS = frozenset({"name", "$id"})  # of a role-schema; they assert nothing
# Of a candidate: its source, then meta and references, or None and the fault.
Reading: TypeAlias = tuple[str, dict[str, Any] | None, list[tuple[str, str | None]], str]


def read(output: str, schema: Schema) -> list[Reading]:
    """Returns what the candidates of an output are, the likeliest first. Needs no store."""
    return [_reading(source, value, schema) for source, value in candidates(output)]


def _reading(source: str, value: Any, schema: Schema) -> Reading:
    if isinstance(value, Invalid):
        return source, None, [], f"the {source} is {value}"
    try:
        refs = references(value, schema)
    except Invalid as error:
        return source, None, [], f"the {source} does not fit: {error}"
    return source, value, refs, ""


def references(candidate: Any, schema: Schema) -> list[tuple[str, str | None]]:
    """Returns the references of a meta with the types that they must have. Raises Invalid where it
    does not fit."""
    canonical.encode(candidate)  # first: validators disagree on what JSON cannot hold
    if not isinstance(candidate, dict):
        raise Invalid("$: must be an object")
    schema.check(candidate)
    return [(ref.hash, ref.cas_type) for ref in schema.refs(candidate)]


def read_apart(output: str, schema: Schema) -> list[Reading]:
    """`read` in a subprocess. Raises Invalid where that needs too much time
    or memory, Failed where the process cannot be started."""
    argv = [sys.executable, "-P", "-c", f"from {__name__} import main; main({CPU_LIMIT_S})"]
    try:
        done = subprocess.run(
            argv,
            input=marshal.dumps((output, schema.document)),
            capture_output=True,
            timeout=TIMEOUT_S,
            start_new_session=True,  # a Ctrl-C is for the daemon
        )
    except OSError as error:
        raise Failed(f"cannot start a process to parse an output: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Invalid(f"it cannot be parsed within {TIMEOUT_S} s") from None
    if done.returncode == -signal.SIGXCPU:
        raise Invalid(f"it cannot be parsed within {CPU_LIMIT_S} s of processor time")
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Invalid(f"it cannot be parsed: the process ended ({done.returncode}) {last}".strip())
    readings: list[Reading] = marshal.loads(done.stdout)
    return readings


def main(seconds: int) -> None:
    cycles.search_rarely()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output, document = marshal.loads(sys.stdin.buffer.read())
    readings = read(output, Schema(document, extra=ROLE_KEYWORDS))
    sys.stdout.buffer.write(marshal.dumps(readings))
