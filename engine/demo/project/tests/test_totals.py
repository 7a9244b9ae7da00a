from __future__ import annotations

import subprocess
import sys
import unittest


def tally(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tally", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TotalsTest(unittest.TestCase):
    def test_prints_the_sum(self) -> None:
        self.assertEqual(tally("1h30m", "45m", "20 s").stdout, "2h 15m 20s\n")

    def test_names_what_it_cannot_read(self) -> None:
        result = tally("1h", "soon")
        self.assertEqual(result.returncode, 2)
        self.assertIn("soon", result.stderr)


if __name__ == "__main__":
    unittest.main()
