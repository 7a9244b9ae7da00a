"""What a shell asks for at a press of Tab: click's scripts and formats, and answers of our own.

click's own answers import the command, and all commands for the name of one. Here the commands are
data (`casfs.cli.completion.command_tree`), and only the store is opened (`values`). bash splits
words at `@` (which begins the next one), `:` and `=`, so its script hands over the line, and cuts
off what bash keeps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from casfs.cli.completion import command_tree
from casfs.cli.completion.command_tree import CHOICE, COMMAND, DIRECTORY, FILE, FLAG, Tree
from casfs.errors import CasfsError

VARIABLE = "_CASFS_COMPLETE"  # bash_source, bash_complete, zsh_source, …
BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" breaks="" one type value
    for one in @ : =; do [[ $COMP_WORDBREAKS == *"$one"* ]] && breaks+=$one; done
    local word="${line##*[[:space:]]}" kept=""
    [[ -n $breaks ]] && kept="${word%%"${word##*[$breaks]}"}" kept="${kept%%@}"
    COMPREPLY=()
    for one in $(env COMP_WORDS="$line" %(complete_var)s=bash_complete $1); do
        IFS=',' read -r type value <<< "$one"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$kept"}"); [[ $value == *= ]] && compopt -o nospace ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])


add_completion_class(Bash)


def main(cli: click.Command, instruction: str) -> int:
    """Answers a shell's request: its script, or one line for each candidate."""
    name, _, action = instruction.partition("_")
    kind = get_completion_class(name)
    if kind is None or action not in ("source", "complete"):
        return 1
    shell = kind(cli, {}, "casfs", VARIABLE)
    if action == "source":
        command_tree.load(cli)  # so that the first completion finds it made
        click.echo(shell.source())
        return 0
    for item in candidates(command_tree.load(cli), *shell.get_completion_args()):
        click.echo(shell.format_completion(item))
    return 0


def candidates(tree: Tree, words: list[str], text: str) -> list[CompletionItem]:
    """Returns what the word `text` after `words` may become."""
    line = _Line(tree)
    for word in words:
        line.add(word)
    return list(line.complete(text))


class _Line:
    """The words so far: the command that they name, its arguments, an option without its value."""

    def __init__(self, tree: Tree) -> None:
        self._tree = self._top = tree
        self._arguments: list[str] = []
        self._option: str | None = None
        self._only_arguments = False
        self._store: str | None = None

    def add(self, word: str) -> None:
        if self._option is not None:
            if self._option == "--store":
                self._store = word
            self._option = None
        elif word == "--":
            self._only_arguments = True
        elif word.startswith("-") and len(word) > 1 and not self._only_arguments:
            name, equals, value = word.partition("=")
            if name == "--store" and equals:
                self._store = value
            takes_value = self._tree["options"].get(name, FLAG) != FLAG
            self._option = name if takes_value and not equals else None
        elif word in self._tree.get("commands", ()):
            self._tree = self._tree["commands"][word]
        else:
            self._arguments.append(word)

    def complete(self, text: str) -> Iterator[CompletionItem]:
        options = self._tree["options"]
        if self._option is not None:
            yield from self._values(options[self._option], text)
        elif text.startswith("-") and not self._only_arguments:
            name, equals, value = text.partition("=")
            if equals:
                for item in self._values(options.get(name, FLAG), value):
                    yield CompletionItem(f"{name}={item.value}", item.type)
            else:
                yield from _plain(options, text)
        elif "commands" in self._tree:
            yield from _plain([] if self._arguments else self._tree["commands"], text)
        elif arguments := self._tree["arguments"]:
            kind, count = arguments[min(len(self._arguments), len(arguments) - 1)]
            if len(self._arguments) < len(arguments) or count == -1:
                yield from self._values(FILE if self._only_arguments else kind, text)

    def _values(self, kind: str, text: str) -> Iterator[CompletionItem]:
        if kind == COMMAND:
            yield from _plain(self._top["commands"], text)
        elif kind.startswith(CHOICE):
            yield from _plain(kind.removeprefix(CHOICE).split(","), text)
        elif kind not in (FILE, DIRECTORY):
            from casfs.cli.completion import values

            try:
                completions = values.of_kind(kind, text, self._arguments, self._store)
            except (CasfsError, OSError):
                completions = []  # no store, or a damaged one: completion prints no errors
            yield from (CompletionItem(value) for value in completions if value.isprintable())
        if kind == FILE:
            yield CompletionItem(text, "file")
        elif kind.endswith(DIRECTORY):
            yield CompletionItem(text, "dir")


def _plain(values: Iterator[str] | list[str] | Tree, text: str) -> Iterator[CompletionItem]:
    return (CompletionItem(value) for value in values if value.startswith(text))
