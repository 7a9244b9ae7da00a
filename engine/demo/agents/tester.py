"""The tester: runs the project's test suite; its exit code decides."""

from __future__ import annotations

from workbench import fenced, report, run_suite

TAIL_LINES = 30


def main() -> None:
    """Test the workspace."""
    passed, output = run_suite()
    lines = output.strip().splitlines() or ["the test suite printed nothing"]
    status = "passed" if passed else "failed"
    meta = {"status": status, "details": lines[-1]}
    report(f"# Tests {status}", fenced("\n".join(lines[-TAIL_LINES:])), meta=meta)


if __name__ == "__main__":
    main()
