"""The planner: runs the project's tests and plans one phase for each test module that fails."""

from __future__ import annotations

import re

from workbench import fenced, put_content, report, run_suite

HEADING = re.compile(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)", re.MULTILINE)
RULE = re.compile(r"^(?:={70}|-{70})$", re.MULTILINE)
LOADER = "unittest.loader."


def failures_by_module(output: str) -> dict[str, list[str]]:
    """Group what unittest printed about each failing test by the module of the test."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^={70}\n", output, flags=re.MULTILINE)[1:]:
        heading = HEADING.match(section)
        if heading is None:
            continue
        name, place = heading.groups()
        module = name if place.startswith(LOADER) else place.split(".")[0]
        _, traceback = RULE.split(section)[:2]
        found.setdefault(module, []).append(f"{name}:\n{traceback.strip()}")
    return found


def phase(module: str, failures: list[str]) -> dict[str, str]:
    """Store what has to be done for a test module, with the evidence; return the phase."""
    title = f"Make {module} pass"
    return {"hash": put_content("\n\n".join([title, *failures])), "title": title}


def main() -> None:
    """Plan the work."""
    passed, output = run_suite()
    if passed:
        reason = "all tests pass: there is nothing to do"
        report("# Plan", reason, meta={"status": "aborted", "reason": reason})
        return
    failing = failures_by_module(output)
    if not failing:
        reason = "the test suite failed without naming a test"
        report("# Plan", fenced(output), meta={"status": "aborted", "reason": reason})
        return
    evidence = [
        f"## Make {module} pass\n\n" + "\n\n".join(fenced(failure) for failure in failures)
        for module, failures in failing.items()
    ]
    planned = [phase(module, failures) for module, failures in failing.items()]
    report("# Plan", *evidence, meta={"status": "planned", "phases": planned})


if __name__ == "__main__":
    main()
