"""`mark`: the message of the next checkpoint of a watched directory."""

from __future__ import annotations

import os

import click

from casfs.cli.common import message_for_daemon, store_root
from casfs.cli.output import echo_result, json_option
from casfs.system import daemon_socket


@click.command()
@click.argument("text", metavar="MESSAGE")
@json_option
def mark(text: str) -> None:
    """Give MESSAGE to the next checkpoint of the watched directory that holds the working one.

    \b
    casfs mark "rename Cart to Basket"
    """
    text = message_for_daemon(text)
    answer = daemon_socket.request(store_root(), "mark", path=os.path.realpath("."), message=text)
    line = f"nothing has changed in {answer['directory']}"
    if answer["changed"]:
        line = f'{answer["name"]}: the next checkpoint is "{answer["message"]}"'
    echo_result(answer, line)
