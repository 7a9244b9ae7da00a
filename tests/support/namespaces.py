"""A network of namespaces on a bridge, for tests as root: what a machine's cable and kernel do.

    with network() as net:                 # skips the test where that is not allowed
        prefix, plug = net.add("a")        # `prefix` before a command enters the namespace
        plug(False)                        # `ip link set down`; plug(True)

Servers that listen on 127.0.0.1 are reached by links that listen on `net.address`.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support import programs

FREE = "198.18"  # RFC 2544: networks of tests


class Network:
    def __init__(self) -> None:
        self.name = f"cf{os.getpid()}"  # interfaces have 15 bytes
        self._net = f"{FREE}.{random.randrange(256)}"
        self._namespaces: list[str] = []

    @property
    def address(self) -> str:
        """Of this side of the bridge."""
        return f"{self._net}.1"

    def add(self, name: str) -> tuple[tuple[str, ...], Callable[[bool], None]]:
        """Makes a namespace; returns what enters it, and what sets its link up or down."""
        space, link = f"{self.name}{name}", f"{self.name}v{name}"
        ip("netns", "add", space)
        self._namespaces.append(space)
        prefix = (programs.path("nsenter"), f"--net=/run/netns/{space}")
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", link, "master", self.name, "up")
        address = f"{self._net}.{len(self._namespaces) + 1}/24"
        for arguments in (["addr", "add", address, "dev", "eth0"], ["link", "set", "eth0", "up"]):
            ip(*arguments, prefix=prefix)
        ip("link", "set", "lo", "up", prefix=prefix)
        return prefix, lambda up: ip("link", "set", link, "up" if up else "down")

    def _begin(self) -> None:
        ip("link", "add", self.name, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self.name)
        ip("link", "set", self.name, "up")

    def _end(self) -> None:
        for space in self._namespaces:
            ip("netns", "del", space)
        ip("link", "del", self.name)


def ip(*arguments: str, prefix: tuple[str, ...] = ()) -> None:
    command = [*prefix, programs.path("ip"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def network() -> Iterator[Network]:
    programs.require("ip", "nsenter")
    made = Network()
    try:
        made._begin()
    except OSError as error:
        pytest.skip(f"no network of namespaces here: {error}")
    try:
        yield made
    finally:
        made._end()
