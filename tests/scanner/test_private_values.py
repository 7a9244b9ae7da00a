"""Values in private files: what a transcript must not show."""

from __future__ import annotations

import pytest

from casfs.scanner.private_values import MAX_VALUES, decoded, private_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=hunter2hunter2\nexport B='with space 12'\n", ["hunter2hunter2", "with space 12"]),
        ('C: "dOuble-99-quoted"\n', ["dOuble-99-quoted"]),
        ('{"key": "js0n-44-value", "n": 12345678}', ["js0n-44-value"]),
        ("machine h login me password p4ss-in-netrc\n", ["p4ss-in-netrc"]),
        (
            "URL=postgres://u:p4ssw0rd@db.internal/app\n",
            ["p4ssw0rd", "postgres://u:p4ssw0rd@db.internal/app"],
        ),
        ("R=redis://:w%3Ard@h\n", ["redis://:w%3Ard@h", "w%3Ard", "w:rd"]),
        (
            "export A_KEY=word B_TOKEN='two words'\n",
            ["two words", "word", "word B_TOKEN='two words"],
        ),
        ('{"tokens": ["worda", {"secret": "wordb"}], "n": [1]}', ["worda", "wordb"]),
        ("list:\n  - token: word\n  - name: x\n", ["word"]),
        ("D=sho1\nE=production\nF=20261123\nG=/usr/lib/python3\nH=db.example.org\n", []),
        ("PASSWORD=abcd\nPIN_SECRET=1234 # four\nTOKEN_ON=true\n", ["abcd", "1234"]),
        ("DB_PASSWORD=correcthorse\nAPI_KEY=a/b.c;d{e}f\n", ["correcthorse", "a/b.c;d{e}f"]),
        (
            "h:5432:db:user:pgp4ss\n*:*:*:u:with\\:colon\n",
            ["5432:db:user:pgp4ss", "pgp4ss", "with:colon"],
        ),
        (
            'KEY="first line of it\nand the second line"\n',
            [
                "first line of it\nand the second line",
                "and the second line",
                "first line of it",
            ],
        ),
        ("I=https://example.org/path\nJ=true\nK=\n# L=c0mment-is-not\n", []),
        ("M=correct-horse-battery\n", ["correct-horse-battery"]),
        ("s.4bare-line-of-a-vault\n", ["s.4bare-line-of-a-vault"]),
        ("b3BlbnNzaC1rZXktdjEA8f==\nproduction\n- in-a-list-99\n", ["b3BlbnNzaC1rZXktdjEA8f=="]),
    ],
)
def test_values(text: str, values: list[str]) -> None:
    assert sorted(one.text for one in private_values(text)) == sorted(values)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_encoding_of_a_file(codec: str) -> None:
    (value,) = private_values(decoded("A_KEY=word\n".encode(codec)))
    assert value.text == "word"


def test_a_large_file_has_a_limit() -> None:
    text = "".join(f"K{number}=v4lue-{number:06}\n" for number in range(MAX_VALUES + 5))
    assert len(private_values(text)) == MAX_VALUES
