"""The reviewer: approves a change that compiles, is small, tidy, and leaves the tests alone."""

from __future__ import annotations

from pathlib import Path

from workbench import changed_files, must, report, run

MOST_LINES = 40


def count_lines(files: list[str]) -> int:
    """Return how many lines the change adds and removes."""
    total = 0
    for row in must("git", "diff", "--numstat", "--no-renames", "HEAD").splitlines():
        added, removed, _ = row.split("\t")
        total += sum(int(number) for number in (added, removed) if number != "-")
    tracked = must("git", "ls-files", "-z").split("\0")
    return total + sum(len(Path(f).read_bytes().splitlines()) for f in files if f not in tracked)


def syntax_error(name: str) -> str | None:
    """Say what is wrong with a Python file that does not compile."""
    if not name.endswith(".py") or not Path(name).exists():
        return None
    try:
        compile(Path(name).read_bytes(), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"{name} does not compile: {error}"
    return None


def review(files: list[str], lines: int) -> list[str]:
    """Return what speaks against the change."""
    issues = [error for error in map(syntax_error, files) if error]
    tests = [name for name in files if "tests" in Path(name).parts]
    issues += [f"{name}: the tests are not to be changed" for name in tests]
    if not files:
        issues.append("nothing was changed")
    if lines > MOST_LINES:
        issues.append(f"{lines} changed lines are more than {MOST_LINES}")
    issues += run("git", "diff", "--check", "HEAD").stdout.splitlines()
    return issues


def main() -> None:
    """Review the workspace against its last commit."""
    files = changed_files()
    lines = count_lines(files)
    issues = review(files, lines)
    seen = f"{lines} changed lines in {', '.join(files) or 'no file'}."
    if issues:
        rejected = {"status": "rejected", "issues": issues}
        report("# Rejected", seen, "\n".join(f"- {issue}" for issue in issues), meta=rejected)
    else:
        verdict = "It compiles, is small, and leaves the tests alone."
        report("# Approved", seen, verdict, meta={"status": "approved"})


if __name__ == "__main__":
    main()
