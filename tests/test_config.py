from __future__ import annotations

from pathlib import Path

import pytest

from casfs import config
from casfs.errors import Failed, Invalid


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def write_user(env: dict[str, str], text: str) -> Path:
    path = config.user_file(env)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def limit(root: Path, env: dict[str, str]) -> tuple[int, str]:
    (value,) = [one for one in config.load(root, env) if one.setting.name == "runs.limit"]
    return value.value, value.origin


def test_every_setting_has_its_default(root: Path, env: dict[str, str]) -> None:
    found = config.load(root, env)
    assert [one.setting for one in found] == list(config.SETTINGS)
    assert [one.value for one in found] == [setting.default for setting in config.SETTINGS]
    assert {one.origin for one in found} == {"default"}
    assert all(setting.help for setting in config.SETTINGS)


def test_settings_come_from_the_nearest_place(root: Path, env: dict[str, str]) -> None:
    assert limit(root, env) == (8, "default")
    user = write_user(env, "[runs]\nlimit = 5\n")
    assert limit(root, env) == (5, str(user))
    (root / "config.toml").write_text("runs.limit = 4\n")
    assert limit(root, env) == (4, str(root / "config.toml"))
    env["CASFS_RUNS_LIMIT"] = "3"
    assert limit(root, env) == (3, "CASFS_RUNS_LIMIT")


def test_where_the_users_file_is(tmp_path: Path) -> None:
    assert config.user_file({"HOME": "/h"}) == Path("/h/.config/casfs/config.toml")
    found = config.user_file({"HOME": "/h", "XDG_CONFIG_HOME": "/c"})
    assert found == Path("/c/casfs/config.toml")
    assert config.user_file({"HOME": "/h", "XDG_CONFIG_HOME": ""}) == Path(
        "/h/.config/casfs/config.toml"
    )


def test_where_the_store_is() -> None:
    everything = {"HOME": "/h", "XDG_DATA_HOME": "/d", "CASFS_STORE": "/s"}

    def found(flag: str | None, *names: str) -> tuple[str, str]:
        value = config.store_root(flag, {name: everything[name] for name in names})
        return str(value.value), value.origin

    assert found("/f", *everything) == ("/f", "--store")
    assert found(None, *everything) == ("/s", "CASFS_STORE")
    assert found("", "HOME", "XDG_DATA_HOME") == ("/d/casfs", "XDG_DATA_HOME")
    assert found(None, "HOME") == ("/h/.local/share/casfs", "default")


def test_a_relative_store_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.store_root("s", {}).value == tmp_path / "s"
    assert config.store_root(None, {"CASFS_STORE": "s"}).value == tmp_path / "s"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("threads = ", "not TOML"),
        ("[runs]\nlimit = '8'\n", "runs.limit must be of type int, is '8'"),
        ("[runs]\nlimit = true\n", "runs.limit must be of type int, is True"),
        ("[runs]\nlimits = 8\n", "no setting 'runs.limits'"),
        ("limit = 8\n", "no setting 'limit'"),
        ("runs.limit = 0\n", "runs.limit must be 1 or more, is 0"),
        ("gc.grace_s = -1\n", "gc.grace_s must be 0 or more, is -1"),
        ("[runs.limit]\nx = 1\n", "runs.limit must be of type int"),
    ],
)
def test_a_wrong_file_is_named_with_the_setting(
    root: Path, env: dict[str, str], text: str, words: str
) -> None:
    (root / "config.toml").write_text(text)
    with pytest.raises(Invalid) as caught:
        config.load(root, env)
    assert str(caught.value).startswith(str(root / "config.toml"))
    assert words in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused(root: Path, env: dict[str, str]) -> None:
    (root / "config.toml").write_bytes(b"# \xff\n")
    with pytest.raises(Invalid, match="not TOML"):
        config.load(root, env)


def test_a_file_that_cannot_be_read_is_told(root: Path, env: dict[str, str]) -> None:
    (root / "config.toml").mkdir()
    with pytest.raises(Failed, match=r"config\.toml"):
        config.load(root, env)


@pytest.mark.parametrize("text", ["", "many", "1.5", "0", "-3"])
def test_the_environment_must_hold_a_number(root: Path, env: dict[str, str], text: str) -> None:
    with pytest.raises(Invalid, match="CASFS_RUNS_LIMIT"):
        config.load(root, env | {"CASFS_RUNS_LIMIT": text})


def cacheable(root: Path, env: dict[str, str]) -> tuple[object, str]:
    found = {value.setting.name: value for value in config.load(root, env)}["actions.cacheable"]
    return found.value, found.origin


def test_a_setting_may_be_a_list_of_texts(root: Path, env: dict[str, str]) -> None:
    assert cacheable(root, env) == ([], "default")
    (root / "config.toml").write_text('[actions]\ncacheable = ["make", "cargo build"]\n')
    assert cacheable(root, env) == (["make", "cargo build"], str(root / "config.toml"))
    env["CASFS_ACTIONS_CACHEABLE"] = """["npm test", 'a "b"']"""
    assert cacheable(root, env) == (["npm test", 'a "b"'], "CASFS_ACTIONS_CACHEABLE")


@pytest.mark.parametrize("text", ["", "make", "make, all", '"make"', "[1]", '[["make"]]', "3"])
def test_a_list_must_be_one(root: Path, env: dict[str, str], text: str) -> None:
    with pytest.raises(Invalid, match="CASFS_ACTIONS_CACHEABLE"):
        cacheable(root, env | {"CASFS_ACTIONS_CACHEABLE": text})
