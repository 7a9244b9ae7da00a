"""Attached agents: which settings files are changed, and which are left as they are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from casfs.attach import agents, attachments, spool, state
from casfs.attach.agents import CLAUDE, OutsideAgent
from casfs.attach.attachments import Attachment
from casfs.errors import CasfsError, Conflict, Invalid, NotFound, Refused
from casfs.store.store import Store
from tests.support.new_store import init_store


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def root(disk_store: Store) -> Path:
    return disk_store.root


def attach(root: Path, project: Path | None) -> Attachment:
    change = attachments.plan(root, CLAUDE, project, os.environ)
    attachments.attach(root, change, os.environ)
    return change.attachment


def detach(root: Path, project: Path | None) -> None:
    attachments.detach(root, "claude", None if project is None else str(project), os.environ)


def test_a_project_without_settings(root: Path, project: Path) -> None:
    done = attach(root, project)
    file = project / ".claude/settings.local.json"
    assert done.file == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    hooks = json.loads(file.read_text())["hooks"]
    assert set(hooks) == set(CLAUDE.events)
    assert attachments.load(root).attached == (done,)
    detach(root, project)
    assert list(project.iterdir()) == []
    assert attachments.load(root).attached == ()


def test_a_project_that_was_moved(root: Path, project: Path) -> None:
    attach(root, project)
    moved = project.with_name("moved")
    project.rename(moved)
    (gone,) = attachments.gone(root)
    assert gone.directory == str(project)
    assert attachments.follow(root, moved) == [gone]
    assert attachments.gone(root) == []
    assert attachments.follow(root, moved) == []
    attach(root, moved)
    detach(root, moved)
    assert list(moved.iterdir()) == []
    assert attachments.load(root).attached == ()


def test_a_copy_of_a_project(root: Path, project: Path) -> None:
    attach(root, project)
    copy = project.with_name("copy")
    shutil.copytree(project, copy)
    assert attachments.follow(root, copy) == []
    detach(root, copy)
    assert "hooks" not in json.loads((copy / ".claude/settings.local.json").read_text())
    with pytest.raises(NotFound):
        detach(root, copy)
    assert len(attachments.load(root).attached) == 1


def test_of_a_user(root: Path) -> None:
    file = Path.home() / ".claude/settings.json"
    file.parent.mkdir()
    text = '{"model": "opus",\n     "env": {"KEY": "x"}}'
    file.write_text(text)
    file.chmod(0o640)
    done = attach(root, None)
    assert done.directory is None
    assert file.stat().st_mode & 0o777 == 0o640
    assert json.loads(file.read_text())["env"] == {"KEY": "x"}
    detach(root, None)
    assert file.read_text() == text
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("agent", agents.AGENTS.values(), ids=agents.AGENTS)
def test_where_the_environment_says(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: OutsideAgent
) -> None:
    usual = attachments.plan(root, agent, None, os.environ)
    attachments.attach(root, usual, os.environ)
    assert Path(usual.attachment.file).is_relative_to(Path.home())
    monkeypatch.setenv(agent.variable, str(tmp_path / "named"))
    with Store.open(root) as store:
        (elsewhere,) = state.listing(store, os.environ)["elsewhere"]
    file = tmp_path / "named" / agent.named_folder / agent.user_file
    assert elsewhere.startswith(f"{agent.name} reads {file} here, which has no hooks")
    for _ in range(2):
        attachments.attach(root, attachments.plan(root, agent, None, os.environ), os.environ)
    assert str(root) in file.read_text()
    with Store.open(root) as store:
        assert state.listing(store, os.environ)["elsewhere"] == []
    done = attachments.detach(root, agent.name, None, {})
    assert {attachment.file for attachment in done} == {usual.attachment.file, str(file)}
    assert not any(Path(attachment.file).exists() for attachment in done)
    assert not (tmp_path / "named").exists()


def test_a_store_with_an_apostrophe(tmp_path: Path, project: Path) -> None:
    with init_store(tmp_path / "it's mine") as store:
        attach(store.root, project)
        assert attach(store.root, project)
        detach(store.root, project)
    assert list(project.iterdir()) == []


def test_a_comment_that_names_our_program(root: Path, project: Path) -> None:
    file = project / ".claude/settings.local.json"
    file.parent.mkdir()
    hook = {"type": "command", "command": f"true # not {attachments.marker(root)}report.py"}
    text = json.dumps({"hooks": {event: [{"hooks": [hook]}] for event in CLAUDE.events}})
    file.write_text(text)
    done = attach(root, project)
    assert attachments.reported_events(root, done) == set(CLAUDE.events)
    detach(root, project)
    assert file.read_text() == text


def test_what_others_put_into_our_folder_stays(root: Path, project: Path) -> None:
    attach(root, project)
    (project / ".claude/commands.md").write_text("mine")
    detach(root, project)
    assert [path.name for path in (project / ".claude").iterdir()] == ["commands.md"]


def test_a_file_that_gained_a_setting_stays(root: Path, project: Path) -> None:
    attach(root, project)
    file = project / ".claude/settings.local.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model": "opus"}))
    detach(root, project)
    assert file.read_text() == '{"model": "opus"}'


def link(file: Path) -> None:
    file.parent.mkdir()
    (file.parent.parent / "shared.json").write_text("{}")
    file.symlink_to(file.parent.parent / "shared.json")


def linked_folder(file: Path) -> None:
    (file.parent.parent / "shared").mkdir()
    file.parent.symlink_to(file.parent.parent / "shared")


def written(text: str | bytes, mode: int = 0o644) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.parent.mkdir()
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(mode)

    return write


def folder(file: Path) -> None:
    file.mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (link, Refused, "is a link"),
        (linked_folder, Refused, "is a link, or in one"),
        (written("{}", mode=0o444), Refused, "is read-only"),
        (written("{"), Invalid, "is not JSON"),
        (written("[]"), Invalid, "is not a JSON object"),
        (written("{} // mine"), Invalid, "is not JSON"),
        (written(b"\xff\xfe{}"), Invalid, "is not UTF-8"),
        (written('{"hooks": 1}'), Invalid, "another value"),
        (written('{"disableAllHooks": true}'), Refused, "turns all hooks off"),
        (folder, Refused, "is not a file"),
    ],
)
def test_files_that_stay_as_they_are(
    root: Path,
    project: Path,
    make: Callable[[Path], None],
    error: type[CasfsError],
    text: str,
) -> None:
    file = project / ".claude/settings.local.json"
    make(file)
    before = None if file.is_dir() or not file.exists() else file.read_bytes()
    with pytest.raises(error, match=text) as caught:
        attach(root, project)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before is None or file.read_bytes() == before
    assert attachments.load(root).attached == ()


def test_attached_twice(root: Path, project: Path) -> None:
    done = attach(root, project)
    text = Path(done.file).read_text()
    (root / attachments.FILE).unlink()  # what a copy of a project has, too
    for _ in range(2):
        assert attach(root, project).file == done.file
        assert Path(done.file).read_text() == text
        assert [known.file for known in attachments.load(root).attached] == [done.file]
    with pytest.raises(NotFound, match="not attached for all projects"):
        detach(root, None)


def test_a_file_that_changes_between_plan_and_write(root: Path, project: Path) -> None:
    change = attachments.plan(root, CLAUDE, project, os.environ)
    file = project / ".claude/settings.local.json"
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(Conflict, match="changed meanwhile"):
        attachments.attach(root, change, os.environ)
    assert file.read_text() == "{}"


def test_broken_after_it_was_attached(root: Path, project: Path) -> None:
    done = attach(root, project)
    file = Path(done.file)
    file.write_text("{")
    assert attachments.reported_events(root, done) is None
    with pytest.raises(Invalid, match=r"take out what runs .*hooks/ by hand"):
        detach(root, project)
    assert attachments.load(root).attached == (done,)


def test_a_project_that_is_gone(root: Path, project: Path) -> None:
    attach(root, project)
    (project / ".claude/settings.local.json").unlink()
    (project / ".claude").rmdir()
    project.rmdir()
    detach(root, project)
    assert attachments.load(root).attached == ()


def test_paused_directories(root: Path, project: Path) -> None:
    attachments.set_paused(root, str(project), is_paused=True)
    attachments.set_paused(root, str(project), is_paused=True)
    known = attachments.load(root)
    assert known.paused == (str(project),)
    assert known.is_paused(str(project / "inside"))
    assert not known.is_paused(str(project) + "2")
    attachments.set_paused(root, str(project), is_paused=False)
    with pytest.raises(NotFound, match="is not paused"):
        attachments.set_paused(root, str(project), is_paused=False)


def test_a_damaged_list(root: Path) -> None:
    (root / attachments.FILE).write_text("{")
    with pytest.raises(Invalid, match=r"attached.json is damaged"):
        attachments.load(root)


def test_the_command_succeeds_without_its_program(tmp_path: Path) -> None:
    line = attachments.command(tmp_path / "gone", replace(CLAUDE))
    assert os.system(line) == 0


def test_the_program_is_kept_current(root: Path) -> None:
    program = spool.prepare(root, os.environ)
    program.write_text("an older one")
    (root / spool.SPOOL / spool.MISSED).touch()
    spool.prepare(root, os.environ)
    assert "casfs" in program.read_text()
    assert spool.missed(root) is not None


def test_hooks_for_worktrees(root: Path, project: Path) -> None:
    """With the others, or after them; all go at once, to the last byte."""
    file = project / ".claude/settings.local.json"
    file.parent.mkdir()
    text = '{\n "hooks": {"Stop": [ ]},\n "model": "opus"\n}\n'
    file.write_text(text)
    attach(root, project)
    change = attachments.plan(root, CLAUDE, project, os.environ, worktrees=True)
    attachments.attach(root, change, os.environ)
    hooks = json.loads(file.read_text())["hooks"]
    assert set(hooks) == {*CLAUDE.events, "WorktreeCreate", "WorktreeRemove"}
    assert hooks["WorktreeCreate"][0]["hooks"][0]["command"].endswith("hooks/worktree create")
    assert [len(groups) for groups in hooks.values()] == [1] * len(hooks)
    again = attachments.plan(root, CLAUDE, project, os.environ, worktrees=True)
    assert again.after == again.before
    detach(root, project)
    assert file.read_text() == text
