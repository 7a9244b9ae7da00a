"""The door that agents come in by."""

from __future__ import annotations

from pathlib import Path

import pytest

import casfs
from casfs.agents.messages import describe
from casfs.errors import Failed, Invalid, NotFound, Refused
from engine.agents import command, loader

CONFIG = {"argv": ["true"]}


def install(folder: Path, name: str, target: str, version: str = "1.2", code: str = "") -> None:
    """A distribution on `folder` with an entry point, as pip would leave it there."""
    info = folder / f"{name}_agent-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}-agent\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text(f"[casfs.agents]\n{name} = {target}\n")
    if code:
        (folder / f"{target}.py").write_text(code)


def described(**descriptor: object) -> str:
    return f"package_descriptor = {descriptor!r}\ncreate_agent = print\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that Python looks for packages in."""
    made = tmp_path / "packages"
    made.mkdir()
    monkeypatch.syspath_prepend(made)
    return made


def test_the_command_agent_comes_in_by_its_entry_point() -> None:
    package = loader.load("command")
    assert (package.name, package.version) == ("command", casfs.__version__)
    assert package.create is command.create_agent
    assert "command" in loader.names()


def test_unknown() -> None:
    with pytest.raises(NotFound, match="no agent or profile 'nobody'; see `casfs agent list`"):
        loader.load("nobody")


@pytest.mark.parametrize("wanted", ["", ">=1", "==1.2", "~=1.0", "!=2"])
def test_a_version_that_will_do(wanted: str, folder: Path) -> None:
    install(folder, "good", "agents_good", code="package_descriptor = {}\ncreate_agent = print\n")
    assert loader.resolve("good", wanted, {}).version == "1.2"


@pytest.mark.parametrize("wanted", ["==1.1", ">=2", "<1.2"])
def test_a_version_that_will_not_do(wanted: str, folder: Path) -> None:
    install(folder, "old", "agents_old", code="package_descriptor = {}\ncreate_agent = print\n")
    with pytest.raises(Refused, match=f"agent old: version 1.2 is installed, not {wanted}"):
        loader.resolve("old", wanted, {})


def test_a_prerelease_is_a_version() -> None:
    assert loader.resolve("command", f"=={casfs.__version__}", CONFIG).name == "command"


def test_no_specifier() -> None:
    with pytest.raises(Invalid, match=r"'1\.2' is not a PEP 440 version specifier"):
        loader.resolve("command", "1.2", CONFIG)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, r"^config.argv is required$"),
        ({"argv": []}, r"^config\.argv: "),
        ({"argv": ["a", 1]}, r"^config\.argv\[1\]: "),
        ({"argv": ["a"], "timeoutS": 0}, r"^config\.timeoutS: "),
        ({"argv": ["a"], "shell": True}, r"^config: .*shell"),
    ],
)
def test_a_config_that_does_not_fit(config: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        loader.resolve("command", "", config)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("gone", "", "ModuleNotFoundError"),
        ("bang", "1 / 0\n", "ZeroDivisionError: division by zero"),
        ("half", "package_descriptor = {}\n", "AttributeError: .*create_agent"),
        ("odd", "package_descriptor = 1\ncreate_agent = print\n", "TypeError"),
        ("quits", "import sys\nsys.exit(2)\n", "SystemExit: 2"),
        ("idle", "package_descriptor = {}\ncreate_agent = 1\n", "create_agent cannot be called"),
        ("list", described(configSchema=[]), "package_descriptor.configSchema must be an object"),
        ("typo", described(configSchema={"type": "strin"}), "package_descriptor.configSchema: not"),
        ("word", described(configSchema={"tpye": "x"}), "package_descriptor.configSchema: "),
        ("kind", described(schemas={}), "package_descriptor.schemas must be a list"),
        ("sets", described(capabilities={"a"}), ".*: a set has no JSON form"),
        ("able", described(capabilities="all"), "package_descriptor.capabilities must be a list"),
    ],
)
def test_a_broken_package_is_named_and_hides_no_other(
    name: str, code: str, said: str, folder: Path
) -> None:
    install(folder, name, f"agents_{name}", code=code)
    assert {name, "command"} <= set(loader.names())
    with pytest.raises(Failed, match=f"agent {name}: does not load: {said}"):
        loader.load(name)
    assert loader.load("command").name == "command"


def test_nobody_takes_the_place_of_a_built_in_agent(folder: Path) -> None:
    install(folder, "command", "agents_other", code="1 / 0\n")
    assert loader.load("command").create is command.create_agent
    assert loader.names().count("command") == 1


AGENT = """
from casfs.agents import AgentResult

package_descriptor = {}


def create_agent(config):
    async def agent(context):
        {body}

    return agent
"""


def test_a_changed_package_is_imported_anew(folder: Path) -> None:
    install(folder, "draft", "agents_draft", code=described(capabilities=["one"]))
    assert loader.load("draft").descriptor["capabilities"] == ["one"]
    (folder / "agents_draft.py").write_text(described(capabilities=["another"]))
    assert loader.load("draft").descriptor["capabilities"] == ["another"]
    (folder / "agents_draft.py").write_text("1 / 0\n")
    with pytest.raises(Failed, match="does not load: ZeroDivisionError"):
        loader.load("draft")
    (folder / "agents_draft.py").write_text(described(capabilities=["mended"]))
    assert loader.load("draft").descriptor["capabilities"] == ["mended"]


def test_an_import_that_fails_names_file_and_line(folder: Path) -> None:
    install(folder, "lost", "agents_lost", code="import agents_lost_part\n")
    (folder / "agents_lost_part.py").write_text("\n\nmissing()\n")
    with pytest.raises(Failed, match=r"NameError: .*agents_lost_part\.py:3\)$"):
        loader.load("lost")


def test_an_exception_names_file_and_line(folder: Path) -> None:
    from casfs.testing import run_agent

    body = "return AgentResul(output='', detail=None)"
    install(folder, "typing", "agents_typing", code=AGENT.replace("{body}", body))
    with pytest.raises(Failed) as raised:
        run_agent(loader.load("typing").create)
    said = str(raised.value)
    assert said.startswith("NameError: name 'AgentResul' is not defined")
    assert said.endswith(f" ({folder / 'agents_typing.py'}:9)")
    assert describe(ValueError("a\nb")) == "ValueError: a b"
    assert describe(KeyError()) == "KeyError"
