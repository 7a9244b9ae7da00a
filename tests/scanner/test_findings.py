"""Every format is found where it is, what only looks like one is not."""

from __future__ import annotations

import json
import multiprocessing
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.scanner import Finding, Scanner, evidence, fingerprint, scan
from casfs.scanner.rules import RULES
from tests.scanner import samples

TOKEN = samples.github_token()


def found(text: str) -> list[tuple[str, str]]:
    data = text.encode()
    return [(one.kind, data[one.start : one.end].decode()) for one in scan(data)]


def test_every_rule_has_a_sample() -> None:
    assert {rule.kind for rule in RULES} == {*samples.FORMATS, *samples.IN_CONTEXT}


@pytest.mark.parametrize("kind", samples.FORMATS)
@pytest.mark.parametrize("around", ["{}", 'x = "{}"\n', "--with={} y", "`{}`,", "\\n{}\\n"])
def test_a_format_is_found(kind: str, around: str) -> None:
    secret = samples.build(kind)
    if around == "\\n{}\\n":
        around = "\n{}\n"
    assert found(around.format(secret)) == [(kind, secret)]


@pytest.mark.parametrize("kind", samples.FORMATS)
def test_a_format_inside_a_word_or_too_short_is_none(kind: str) -> None:
    secret = samples.build(kind)
    first_part = samples.FORMATS[kind][0]
    assert found(f"a{secret}") == [] or isinstance(first_part, tuple)
    assert found(secret[:14]) == []


@pytest.mark.parametrize(
    ("kind", "text", "secret"), [(kind, *pair) for kind, pair in samples.IN_CONTEXT.items()]
)
def test_what_a_name_or_a_place_tells_is_found(kind: str, text: str, secret: str) -> None:
    assert found(text) == [(kind, secret)]


@pytest.mark.parametrize(
    "label",
    [
        "PRIVATE KEY",
        "OPENSSH PRIVATE KEY",
        "EC PRIVATE KEY",
        "ENCRYPTED PRIVATE KEY",
        "PGP PRIVATE KEY BLOCK",
    ],
)
def test_a_private_key_is_found_as_a_file_in_json_and_cut_off(label: str) -> None:
    key = samples.private_key(label)
    in_json = key.replace("\n", "\\n")
    headers = key.replace("-----\n", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,0A\n\n", 1)
    for text in (key, headers, in_json):
        assert found(f'"k": "{text}"') == [("private-key", text)]
    [(kind, secret)] = found(key[:400])
    assert kind == "private-key"
    assert len(secret) > 380


PREFIXES = {
    "cat -n": "{number:6}\t", "nl": "{number:6}  ", "grep -n": "{number}:", "grep": "a/key.pem:",
    "grep -rn": "a/key.pem:{number}:", "grep -C": "a/key.pem-{number}-", "diff": "-",
    "awk": "{number}: ", "Read": "{number:6}\u2192", "bat": "{number:4} \u2502 ",
    "comment": "// ", "quote": "> ",
}  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=[*PREFIXES])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_private_key_with_something_before_each_line(prefix: str, times: int) -> None:
    """`times`: that it was written as a string of JSON."""
    key = samples.private_key()
    lines = enumerate(key.split("\n"), 1)
    text = "\n".join(f"{prefix.format(number=number)}{line}" for number, line in lines)
    for _ in range(times):
        text = json.dumps({"text": text})
    [(kind, secret)] = found(text)
    assert kind == "private-key"
    missing = [line for line in key.split("\n") if line not in secret]
    assert missing == []


@pytest.mark.parametrize(
    "after", ["1:", "\na:", "\n" + "a" * 119, "\n1 ", "\\n1", "A1 ", "\n" + "A" * 15 + "-", "/" * 9]
)
def test_what_looks_like_the_lines_of_a_key_takes_no_time(after: str) -> None:
    text = "-----BEGIN PRIVATE KEY-----" + after * (200_000 // len(after))
    process = multiprocessing.get_context("fork").Process(target=found, args=(text,))
    process.start()
    process.join(20)
    process.kill()
    assert process.exitcode == 0


@pytest.mark.parametrize("text", [
    TOKEN[:-1] + ("a" if TOKEN[-1] != "a" else "b"),  # the checksum
    "ghp_" + "x" * 36,
    "AKIAIOSFODNN7" + "EXAMPLE",
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
    samples.private_key().replace("Q5=", "EXAMPLE"),
    'HEADER = "-----BEGIN PRIVATE KEY-----"\nif HEADER in text:\n    raise ValueError(HEADER)',
    "-----BEGIN CERTIFICATE-----\n" + samples.private_key()[40:],
    "postgres://user:password@host/db",
    "postgres://user:${DB_PASSWORD}@host/db",
    "https://{user}:{password}@host",
    "http://a.example/x:8@b",
    'password = "changeme"',
    'password = "hunter2"',
    'password = "FORBIDDEN_VALUE2"',
    "postgres://app:k9Lm2x@db.example.com/x",
    "postgres://app:k9Lm2x@localhost/x",
    "https://a.example:123,b:foo7bar@c",
    'key = "sk-ant-api03-' + "-".join(["abc123", "def456", "ghi789", "jklmno"] * 4) + '"',
    'token = "a123b45c6d78e9f012a34cd5e6a7890b12c3d45e"',
    'SNYK_TOKEN = "12345678-ABCD-ABCD-ABCD-1234567890AB"',
    "docker run -u 1000:a1b2c3d4e5 curl-image",
    "curl -u app:$PASSWORD_1 https://a.b",
    "Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==",
    f'"SigningKeyCertificate": "{samples.word(200)}"',
    "key = library.MLKEM768X25519PrivateKey",
    'token = os.environ["API_TOKEN_2"]',
    "token = get_token_v2(request3)",
    "secret = config.aws2.secret4_value",
    'api_key = "YOUR_API_KEY_123abc456"',
    'API_KEY = "${API_KEY_17_FOR_ME_9}"',
    'token = "7c9e6679-7425-40de-944b-e07fc1f90ae7"',
    'secret_name = "my-long-secret-name-of-2-words"',
    'token_url = "https://host/oauth2/v2.0/authorize9"',
    f'"nextToken": "{samples.word(40)}"',
    f'"KeyId": "{samples.word(24)}"',
    f'public_key = "{samples.word(44)}"',
    f'"integrity": "sha512-{samples.word(86)}=="',
    'PasswordLastUsed: "2016-09-08T21:47:36Z"',
    "token: 11342745564031282115445820247725",
])  # fmt: skip
def test_what_only_looks_like_a_secret_is_none(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize("text", [
    "herokuToken = '{}'",
    'api_key: "{}"',
    'SNYK_TOKEN ?= "{}"',
])  # fmt: skip
def test_a_uuid_is_a_secret_beside_the_name_of_a_provider_that_has_them(text: str) -> None:
    source = random.Random(2)
    parts = ["".join(source.choices(samples.HEX, k=count)) for count in (8, 4, 4, 4, 12)]
    assert found(text.format("-".join(parts))) == [("high-entropy", "-".join(parts))]


@pytest.mark.parametrize("text", [
    "<apiToken>\n  {}\n</apiToken>",
    'var apiToken string = "{}"',
    'API_TOKEN :::= "{}"',
    'API_TOKEN ?= "{}"',
    '$apiToken .= "{}"',
    "token: s.4k9T2a3L{}",
    '"user_auth": "{}"',
    "creds = {}",
    "postgres://app:{}@localhost/x",
])  # fmt: skip
def test_notations_of_a_name_and_its_secret(text: str) -> None:
    secret = samples.word(24, 2)
    [(_, value)] = found(text.format(secret))
    assert value.endswith(secret)


def test_a_specific_kind_stands_above_the_general_one() -> None:
    assert found(f'GITHUB_TOKEN = "{TOKEN}"') == [("github-token", TOKEN)]


def test_lines_and_offsets() -> None:
    data = f"a\nb {TOKEN}\n\nc={samples.build('npm-token')}".encode()
    assert scan(data) == (
        Finding("github-token", line=2, start=4, end=44, secret=data[4:44]),
        Finding("npm-token", line=4, start=48, end=88, secret=data[48:88]),
    )


def test_binary_data_has_none() -> None:
    assert scan(b"\0" + TOKEN.encode()) == ()


def test_what_is_allowed_is_none() -> None:
    other = samples.github_token(seed=1)
    data = f"{TOKEN} {other}".encode()
    [left] = Scanner([fingerprint(TOKEN.encode())]).scan(data)
    assert data[left.start : left.end].decode() == other
    assert Scanner([fingerprint(data)]).scan(data) == ()
    assert Scanner().scan(data) == scan(data)


KINDS = sorted(samples.FORMATS)
PLAIN = st.text("abc xyz\n\t=:.é", max_size=60)


@given(st.lists(st.tuples(PLAIN, st.sampled_from(KINDS), st.integers(0, 50)), max_size=5), PLAIN)
def test_offsets_are_those_of_the_secrets(parts: list[tuple[str, str, int]], end: str) -> None:
    secrets = [samples.build(kind, seed) for _, kind, seed in parts]
    text = "".join(
        f"{plain}\n{secret}\n" for (plain, _, _), secret in zip(parts, secrets, strict=True)
    )
    data = (text + end).encode()
    findings = scan(data)
    assert [data[one.start : one.end].decode() for one in findings] == secrets
    assert [one.line for one in findings] == [
        data[: one.start].count(b"\n") + 1 for one in findings
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_token_looks_like_does_not_matter(kind: str) -> None:
    """Not even where its few digits are in order by chance."""
    for seed in range(60):
        data = f"{samples.build(kind, seed)}\n".encode()
        assert [data[one.start : one.end] for one in scan(data)] == [data[:-1]], seed


@given(st.binary(max_size=3000))
def test_any_bytes_are_scanned(data: bytes) -> None:
    findings = scan(data)
    assert list(findings) == sorted(findings, key=lambda one: one.start)
    assert all(0 <= one.start < one.end <= len(data) for one in findings)


@pytest.mark.parametrize("text", ['token="' + "1" * 400_000, "eyJ" + "eyJaaaaaaaaaa." * 30_000,
                                  "secret_key=a1" * 30_000], ids=len)  # fmt: skip
def test_hostile_text_ends(text: str) -> None:
    """Time would be quadratic in the length if every hit were looked at from far before it."""
    scan(text.encode())


def test_entropy() -> None:
    assert evidence.bits(b"aaaa") == 0
    assert evidence.bits(b"abcd") == 2
    assert evidence.looks_random(samples.word(24).encode())
    assert not evidence.looks_random(b"get-token-from-storage-2")
    assert evidence.looks_random(bytes(random.Random(1).choices(b"0123456789abcdef", k=32)))
