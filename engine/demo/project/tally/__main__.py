"""The command: `python3 -m tally DURATION…` prints the sum."""

from __future__ import annotations

import sys

from tally import format_duration, parse_duration


def main(arguments: list[str]) -> int:
    """Print the sum of the durations; return the exit code."""
    try:
        print(format_duration(sum(parse_duration(text) for text in arguments)))
    except ValueError as error:
        print(f"tally: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
