from __future__ import annotations

import unittest

from tally import parse_duration


class ParsingTest(unittest.TestCase):
    def test_units_add_up(self) -> None:
        self.assertEqual(parse_duration("1d 2h 3m 4s"), 93784)

    def test_spaces_do_not_matter(self) -> None:
        self.assertEqual(parse_duration(" 1h30 m "), 5400)

    def test_decimals(self) -> None:
        self.assertEqual(parse_duration("1.5h"), 5400)

    def test_what_is_no_duration_is_refused(self) -> None:
        for text in ("", "soon", "5", "1h later", "-1h"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                parse_duration(text)


if __name__ == "__main__":
    unittest.main()
