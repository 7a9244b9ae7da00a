"""The loader of agent packages: entry points of the group `casfs.agents` (`casfs.agents`)."""

from __future__ import annotations

import difflib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from casfs import canonical
from casfs.agents import AgentFn
from casfs.errors import CasfsError, Failed, Invalid, NotFound, Refused
from casfs.nodes.schema import Schema
from casfs.system import run_command
from engine.agents import package_code
from engine.limits import faults as limit_faults
from engine.moderator import rules
from engine.secrets.config_marks import AGENT, EXPRESSION, marked_values
from engine.secrets.redaction import secret_variables

ENTRY_POINT_GROUP, BUILTIN_DISTRIBUTION = "casfs.agents", "casfs"
LIMITS = "limits"  # in the config of any package: for the engine
IMPORT_TIMEOUT_S = 10.0
IMPORTED = b"\x06imported"
PROBE = f"""
import json, sys, traceback
from importlib.metadata import EntryPoint
sys.path[:] = json.loads(sys.argv[1])
try:
    EntryPoint("", sys.argv[2], "").load()
except BaseException as error:
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    inside = [f" ({{file}}:{{line}})" for file, line in frames[1:] if "importlib" not in file]
    sys.stderr.write(f"{{type(error).__name__}}: {{error}}{{''.join(inside[-1:])}}\\n")
    raise SystemExit(1)
sys.stderr.write({IMPORTED.decode()!r})
"""
MISSING = re.compile(r'"([^"]+)" is a required property')
_loaded: dict[str, tuple[ModuleType | None, str]] = {}  # by module: when it was imported
DESCRIPTOR_TYPES = {"configSchema": "an object", "schemas": "a list", "capabilities": "a list"}


@dataclass(frozen=True)
class Package:
    """An agent package. `version`: of the code that this process has loaded and runs; `installed`:
    that of what is installed by now."""

    name: str
    version: str
    descriptor: Mapping[str, Any] = field(repr=False)
    create: Callable[[Mapping[str, Any]], AgentFn] = field(repr=False)
    installed: str | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its config."""
        return dict(self.descriptor.get("configSchema", {}))

    def check_config(self, config: Any) -> None:
        """Raises Invalid naming the path in the config."""
        for fault in limit_faults(limits(config), f"config.{LIMITS}"):
            raise Invalid(fault)
        try:
            Schema(self.schema).check(own_config(config))
        except Invalid as error:
            path, _, fault = str(error).partition(": ")
            path = f"config{path.removeprefix('$')}"
            if missing := MISSING.fullmatch(fault):
                raise Invalid(f"{path}.{missing[1]} is required") from None
            raise Invalid(f"{path}: {fault}") from None
        for text in marked_values(self.schema, config, EXPRESSION):
            if faults := rules.result_errors(text, {}):
                name = next((f".{key}" for key, one in config.items() if one is text), "")
                raise Invalid(f"config{name}: {faults[0]}")

    def secret_names(self, config: Any) -> set[str]:
        """Returns the variables that a config names as secrets, those of nested agents included."""
        found = secret_variables(self.schema, config)
        for name, _, below in self.nested_agents(config):
            with suppress(CasfsError):  # reported when the thread starts
                found |= load(name).secret_names(below)
        return found

    def nested_agents(self, config: Any) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yields (name, version, config) of the agents that a config names."""
        for one in marked_values(self.schema, config, AGENT):
            if isinstance(one, Mapping) and isinstance(one.get("name"), str):
                yield one["name"], one.get("version", ""), one.get("config", {})


def limits(config: Mapping[str, Any]) -> Any:
    """Returns the limits that an agent's config sets for its attempts."""
    return config.get(LIMITS, {})


def own_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a config that is the package's own."""
    return {name: value for name, value in config.items() if name != LIMITS}


def names() -> list[str]:
    """Returns the names of all installed agent packages, also of those that do not load."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)})


def unknown(name: str, profiles: Collection[str] = ()) -> NotFound:
    """Returns the error for a name that no package and no profile has, with the nearest one."""
    near = difflib.get_close_matches(name, [*profiles, *names()], 1)
    hint = f"did you mean {near[0]}?" if near else "see `casfs agent list`"
    return NotFound(f"no agent or profile {name!r}; {hint}")


def load(name: str) -> Package:
    """Loads an agent package. Raises NotFound where none has that name, Failed where it does not
    load or its descriptor is invalid."""
    points = sorted(entry_points(group=ENTRY_POINT_GROUP, name=name), key=_is_third_party)
    if not points:
        raise unknown(name)
    point = points[0]
    third_party = _is_third_party(point)
    try:
        if third_party:
            package_code.forget_changed(point.module)
        _probe(point)
        exported = point.load()
        if third_party:
            package_code.note_loaded(point.module)
        descriptor = dict(exported.package_descriptor)
        version = _loaded_version(point)
        package = Package(name, version, descriptor, exported.create_agent, _version(point))
        check(package)
    except CasfsError as error:
        raise Failed(f"agent {name}: does not load: {error}") from error
    except BaseException as error:  # third-party code may raise anything
        said = package_code.describe(error)
        raise Failed(f"agent {name}: does not load: {said}") from error
    return package


def _probe(point: EntryPoint) -> None:
    """Imports a third-party package in a process of its own first: an import that hangs, exits or
    crashes ends that process and not this one. Raises Failed."""
    if not _is_third_party(point) or point.module in sys.modules:
        return
    said = io.BytesIO()
    argv = [sys.executable, "-c", PROBE, json.dumps([os.path.abspath(one) for one in sys.path])]
    ended = run_command.run(
        [*argv, point.value],
        cwd=Path("/"),
        env=os.environ,
        timeout=IMPORT_TIMEOUT_S,
        stdout=(),
        stderr=(said,),
    )
    if ended.timed_out:
        raise Failed(f"its import takes longer than {IMPORT_TIMEOUT_S:g} s")
    if ended.exit_code != 0 or IMPORTED not in said.getvalue():
        lines = said.getvalue().decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "nothing on stderr")
        ends = f"its import ends the process (exit code {ended.exit_code}): "
        raise Failed(f"{'' if ended.exit_code == 1 else ends}{last}")


def _is_third_party(point: EntryPoint) -> bool:
    """Sorts built-in agents first: no other package can replace one."""
    return point.dist is None or point.dist.name != BUILTIN_DISTRIBUTION


def check(package: Package) -> None:
    """Raises Invalid for an unusable descriptor."""
    canonical.encode(package.descriptor)
    if not callable(package.create):
        raise Invalid("create_agent cannot be called")
    for key, form in DESCRIPTOR_TYPES.items():
        kind = Mapping if form == "an object" else list | tuple
        if key in package.descriptor and not isinstance(package.descriptor[key], kind):
            raise Invalid(f"package_descriptor.{key} must be {form}")
    try:
        Schema(package.schema, new=True)
    except Invalid as error:
        raise Invalid(f"package_descriptor.configSchema: {error}") from None


def resolve(name: str, version: str, config: Mapping[str, Any]) -> Package:
    """Returns the installed package, which must satisfy a PEP 440 specifier ("" is any) and accept
    `config`; so must its nested agents. Raises NotFound, Invalid, Refused (the version), Failed."""
    package = load(name)
    try:
        wanted = SpecifierSet(version)
    except InvalidSpecifier:
        raise Invalid(f"agent {name}: {version!r} is not a PEP 440 version specifier") from None
    if not wanted.contains(package.version, prereleases=True):
        upgraded = package.installed not in (None, package.version)
        hint = f"; restart the daemon to load {package.installed}" if upgraded else ""
        raise Refused(f"agent {name}: version {package.version} is installed, not {version}{hint}")
    package.check_config(dict(config))
    for further in package.nested_agents(config):
        resolve(*further)
    return package


def _loaded_version(point: EntryPoint) -> str:
    """Returns the version that was installed when this process imported the package: a running
    daemon goes on with that code after an upgrade."""
    module = sys.modules.get(point.module)
    known, version = _loaded.get(point.module, (None, ""))
    if module is None or known is not module:
        version = _version(point)
        _loaded[point.module] = module, version
    return version


def _version(point: EntryPoint) -> str:
    return point.dist.version if point.dist is not None else "0"
