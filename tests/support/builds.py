"""Small projects for real build tools, whose program says what it was built from.

Each has two sources and what both of them use. An edit keeps the size of a file, which is the
hardest case for whoever compares times and sizes.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Sources = Mapping[str, str]  # text of each file, in which `0` is the value that an edit changes
OUTPUT = re.compile(r"\bvalue=(\w+)")


@dataclass(frozen=True)
class Tool:
    """`programs`: that it needs; `output`: what it makes; `sources`: of the project; `edited`:
    those that an edit changes; `build`: the command; `is_idle`: whether its output says that it had
    nothing to do; `run`: what prints the values. `trusts_order`: it builds nothing where files have
    new times in their old order; `seconds`: it does not see an edit within a second."""

    name: str
    programs: tuple[str, ...]
    sources: Sources
    edited: tuple[str, ...]
    build: tuple[str, ...]
    is_idle: Callable[[str], bool]
    run: tuple[str, ...]
    output: str
    trusts_order: bool = True
    seconds: bool = False

    def create(self, project: Path) -> Path:
        for name, text in self.sources.items():
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if self.seconds:
                os.utime(path, (0, time.time() - 3600))
        return project

    def edit(self, project: Path, name: str, value: str) -> None:
        """`value`: one letter. Written as an editor does, in place."""
        path = project / name
        before = path.stat().st_mtime
        path.write_text(re.sub(r"value=\w", f"value={value}", path.read_text()))
        if self.seconds:
            os.utime(path, (before + 1, before + 1))

    def make(self, project: Path) -> bool:
        """Builds; returns whether there was something to do."""
        said = _call(self.build, project)
        return not self.is_idle(said)

    def says(self, project: Path) -> list[str]:
        """Returns the values that the program was built from."""
        return OUTPUT.findall(_call(self.run, project))

    def says_when_clean(self, project: Path, empty: Path) -> list[str]:
        """Returns what a program says that is built of the same sources, and nothing else."""
        for name in self.sources:
            (empty / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(project / name, empty / name)
        self.make(empty)
        try:
            return self.says(empty)
        finally:
            shutil.rmtree(empty)


def _call(command: tuple[str, ...], folder: Path) -> str:
    home = Path(
        pwd.getpwuid(os.getuid()).pw_dir
    )  # tests have another, and rustup its compilers there
    env = {
        "RUSTUP_HOME": str(home / ".rustup"),
        **os.environ,
        "CARGO_TERM_COLOR": "never",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    done = subprocess.run(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, (command, folder, done.stdout)
    return done.stdout


C_FILES = {
    "common.h": '#define COMMON "value=0"\n',
    "a.c": '#include "common.h"\n#include <stdio.h>\n'
    'void a(void) { puts("value=0"); puts(COMMON); }\n',
    "main.c": '#include <stdio.h>\nvoid a(void);\nint main(void) { a(); puts("value=0"); }\n',
}
MAKEFILE = """\
prog: a.o main.o
\tcc -o prog a.o main.o
a.o: a.c common.h
\tcc -c -o a.o a.c
main.o: main.c
\tcc -c -o main.o main.c
"""
# The rules of MAKEFILE with a compiler that takes 2 ms: for tests that build many times.
QUICK_MAKEFILE = """\
prog: a.o main.o
\tcat a.o main.o >prog
a.o: a.c common.h
\tcat a.c common.h >a.o
main.o: main.c
\tcat main.c >main.o
"""
NINJA = """\
rule cat
  command = cat $in >$out
build a.o: cat a.c common.h
build main.o: cat main.c
build prog: cat a.o main.o
"""
CARGO = '[package]\nname = "prog"\nversion = "0.1.0"\nedition = "2021"\n'
RUST = {
    "Cargo.toml": CARGO,
    "src/common.rs": 'pub const COMMON: &str = "value=0";\n',
    "src/a.rs": 'pub fn a() { println!("value=0"); println!("{}", crate::common::COMMON); }\n',
    "src/main.rs": 'mod a;\nmod common;\nfn main() { a::a(); println!("value=0"); }\n',
}
# An incremental build of cargo reads what it kept by hash; without it every crate is built whole.
CARGO_BUILD = ("cargo", "build", "--offline", "--config", "build.incremental=false")
# Without the library of types, of which tsc reads a second long.
TYPES = ["Boolean", "CallableFunction", "Function", "IArguments", "NewableFunction", "Number"]
TYPES += ["Object", "RegExp", "String", "Array<T>"]
TYPESCRIPT = {
    "tsconfig.json": '{"compilerOptions": {"composite": true, "outDir": "out", "noLib": true,'
    ' "module": "commonjs", "target": "es2020", "types": []}, "include": ["*.ts"]}\n',
    "globals.d.ts": "".join(f"interface {name} {{}}\n" for name in TYPES),
    "common.ts": 'export const COMMON = "value=0";\n',
    "a.ts": 'import { COMMON } from "./common";\nexport const A = "value=0 " + COMMON;\n',
    "main.ts": 'import { A } from "./a";\ndeclare const console: any;\n'
    'console.log(A + " value=0");\n',
}
PYTHON = {
    "common.py": 'COMMON = "value=0"\n',
    "a.py": 'import common\nA = "value=0 " + common.COMMON\n',
    "main.py": 'import a\ndef main(): print(a.A, "value=0")\n',
}
IMPORT = (sys.executable, "-v", "-c", "import main")
SAY = (sys.executable, "-c", "import main; main.main()")

C_NAMES = ("common.h", "a.c", "main.c")


def _is_up_to_date(said: str) -> bool:
    return "is up to date" in said


MAKE = Tool(
    "make",
    ("make", "cc"),
    {"Makefile": MAKEFILE, **C_FILES},
    C_NAMES,
    ("make", "prog"),
    _is_up_to_date,
    ("./prog",),
    "prog",
)
QUICK_MAKE = Tool(
    "make with cat",
    ("make",),
    {"Makefile": QUICK_MAKEFILE, **C_FILES},
    C_NAMES,
    ("make", "prog"),
    _is_up_to_date,
    ("cat", "prog"),
    "prog",
)
TOOLS = (
    MAKE,
    QUICK_MAKE,
    Tool(
        "ninja",
        ("ninja",),
        {"build.ninja": NINJA, **C_FILES},
        C_NAMES,
        ("ninja", "prog"),
        lambda said: "no work to do" in said,
        ("cat", "prog"),
        "prog",
        trusts_order=False,  # its log has the times of what it built
    ),
    Tool(
        "cargo",
        ("cargo", "rustc"),
        RUST,
        ("src/common.rs", "src/a.rs", "src/main.rs"),
        CARGO_BUILD,
        lambda said: "Compiling" not in said,
        ("target/debug/prog",),
        "target",
    ),
    Tool(
        "tsc",
        ("tsc", "node"),
        TYPESCRIPT,
        ("common.ts", "a.ts", "main.ts"),
        ("tsc", "-b", "--verbose"),
        lambda said: "Building project" not in said,
        ("node", "out/main.js"),
        "out",
    ),
    Tool(
        "python",
        (),
        PYTHON,
        ("common.py", "a.py", "main.py"),
        IMPORT,
        lambda said: "# created" not in said,
        SAY,
        "__pycache__",
        trusts_order=False,  # bytecode has the time of its source
        seconds=True,
    ),
)
