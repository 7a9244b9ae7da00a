from __future__ import annotations

import unittest

from tally import format_duration


class FormattingTest(unittest.TestCase):
    def test_largest_units_first(self) -> None:
        self.assertEqual(format_duration(93784), "1d 2h 3m 4s")

    def test_empty_units_are_left_out(self) -> None:
        self.assertEqual(format_duration(3605), "1h 5s")
        self.assertEqual(format_duration(0), "0s")

    def test_a_rounded_second_fills_the_minute(self) -> None:
        self.assertEqual(format_duration(59.7), "1m")

    def test_a_rounded_second_fills_the_hour(self) -> None:
        self.assertEqual(format_duration(3599.7), "1h")


if __name__ == "__main__":
    unittest.main()
