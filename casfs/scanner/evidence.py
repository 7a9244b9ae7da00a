"""Whether what looks like a secret is one: checksums, entropy, and what stands in for a secret.

Each function takes the match of a rule; the secret is its group `secret`, or all of it.
"""

from __future__ import annotations

import binascii
import math
import re
import zlib
from collections import Counter
from itertools import pairwise

Match = re.Match[bytes]

BASE62 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
GITHUB_CHECKSUM_CHARS = 6
MIN_TOKEN_BITS = 2.5  # a character; 32 random hexadecimal digits have 3.2 or more
MIN_KEY_BITS = 3.5  # a character; 20 random letters and digits have 3.7 or more
MIN_HEX_BITS = 2.8
MIN_HEX_CHARS = 24
MIN_KEY_CHARS = 16
MIN_PASSWORD_CHARS = 10
MIN_PASSWORD_CLASSES = 3
MIN_PASSWORD_BITS = 3  # a character: 8 different ones
MIN_COUNTED_CHARS = 6
COMMAND_BYTES = 400  # of a command before its option

FILLER = re.compile(
    rb"example|placeholder|redacted|dummy|fake|xxxx|\.\.\.|\*\*|##|00000|123456|abcdef",
    re.IGNORECASE,
)
PLACEHOLDER = re.compile(  # words of a person, and what a program replaces
    rb"change.?(?:me|this)|your|sample|insert|replace|secret|pass|test|token|[<>{}$]|%\(|%s",
    re.IGNORECASE,
)
EXAMPLE_HOST = re.compile(  # RFC 2606 and RFC 6761, and those of a person
    rb"(?i)(?:[\w-]+\.)*(?:example|test|invalid|localhost|foo|bar|host(?:name)?|domain|server)\b"
    rb"|127\.|\[::1|[^\w\[]"
)
UUID_NAME = re.compile(  # of the providers whose keys have this form
    rb"(?i)api.?key|(?:api|auth|access|heroku|hubspot|sendbird|snyk|squarespace).?token"
)
UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
HEX = re.compile(rb"[0-9a-fA-F]+\Z")
DIGITS = re.compile(rb"\d+")
LETTERS = re.compile(rb"[A-Za-z]+")
TIME = re.compile(rb"\d{4}-\d\d-\d\d")
WORDS = rb"[A-Za-z_]+(?:\d+[A-Za-z_]*){0,2}"
DOTTED_NAME = re.compile(rb"%b(?:\.%b)+\Z" % (WORDS, WORDS))
CONSTANT = re.compile(rb"[A-Z_]+\d*\Z")
PUBLIC_NAME = re.compile(  # of a value that only looks like a secret
    rb"(?i)(?:next|page|continuation|sequence|change|client(?!.access)|update|unit|csrf)"
    rb"[\w.-]*token|hash_?key|key_?hash|cert|public|(?:id|name|url|path|type|used|date)[\"'\]\s]*[:=]"
)
NAME_BYTES = 24  # of a name before the part that tells
PASSWORD_NAME = re.compile(rb"(?i)pass|pwd")
DIGIT = re.compile(rb"\d")
LETTER = re.compile(rb"[A-Za-z]")
PATTERN = re.compile(rb"[][(){}|\\^]")  # what a regular expression has, and no URL
NAME_IN_CODE = re.compile(rb"[A-Za-z_][\w.]*(?:[(\[].*)?\Z")  # of a variable, a type, a function
CLASSES = [re.compile(letters) for letters in (rb"[a-z]", rb"[A-Z]", rb"\d", rb"[^0-9A-Za-z]")]
QUOTES = b"\"'`"
ENDS = b" \t\r\n;,&<\"'`)}]|"  # what may follow a value without quotes


def secret(match: Match) -> bytes:
    return match["secret"] if "secret" in match.re.groupindex else match[0]


def always(match: Match) -> bool:
    return True


def varied(match: Match) -> bool:
    """Returns whether the characters of a token vary, unlike those of `ghp_xxxx…`."""
    token = secret(match)
    return not FILLER.search(token) and bits(token) >= MIN_TOKEN_BITS and not is_counted(token)


def entropic(match: Match) -> bool:
    return varied(match) and looks_random(secret(match))


def github_checksum(match: Match) -> bool:
    """Returns whether the last six characters are the CRC-32 of those after the prefix."""
    random = match[0].partition(b"_")[2]
    remainder = zlib.crc32(random[:-GITHUB_CHECKSUM_CHARS])
    digits = bytearray()
    for _ in range(GITHUB_CHECKSUM_CHARS):
        remainder, digit = divmod(remainder, len(BASE62))
        digits.append(BASE62[digit])
    return random.endswith(bytes(reversed(digits)))


def web_token(match: Match) -> bool:
    """Returns whether the first part of a JSON web token names its algorithm."""
    header = match[0].partition(b".")[0]
    try:
        return b'"alg"' in binascii.a2b_base64(header + b"==")
    except binascii.Error:
        return False


def header_token(match: Match) -> bool:
    """Returns whether the value of a header is random, or is a name and a password in base64."""
    return name_and_password(match) if b"basic" in match[0].lower() else entropic(match)


def url_password(match: Match) -> bool:
    """Returns whether a password in a URL is one: in a URL of an example only a random one."""
    password = secret(match)
    if is_placeholder(password) or password.isalpha() or password.isdigit():
        return False
    if PATTERN.search(password):
        return False
    is_example = EXAMPLE_HOST.match(match.string, match.end())
    return not is_example or is_strong_password(password) or looks_random(password)


def curl_password(match: Match) -> bool:
    """Returns whether it is an option of a curl command with a password, not a placeholder."""
    password = secret(match)
    command = match.string[max(0, match.start() - COMMAND_BYTES) : match.start()]
    is_curl = b"curl" in command
    return is_curl and bits(password) >= MIN_PASSWORD_BITS and not is_placeholder(password)


def curl_header(match: Match) -> bool:
    """Returns whether the value of a header in a command is a secret, not a placeholder."""
    value = secret(match)
    if b"$" in value or PATTERN.search(value) or is_placeholder(value):
        return False
    return has_digits_and_letters(value) and bits(value) >= MIN_PASSWORD_BITS


def curl_key(match: Match) -> bool:
    return has_digits_and_letters(secret(match)) and curl_password(match)


def has_digits_and_letters(value: bytes) -> bool:
    return DIGIT.search(value) is not None and LETTER.search(value) is not None


def name_and_password(match: Match) -> bool:
    """Returns whether it is a name and a password in base64."""
    try:
        password = binascii.a2b_base64(secret(match)).partition(b":")[2]
    except binascii.Error:
        return False
    return bool(password) and not is_placeholder(password)


def yaml_password(match: Match) -> bool:
    """Returns whether a value without quotes that ends its line is a strong password, and neither a
    placeholder nor a name in code."""
    value = secret(match)
    after = match.string[match.end() : match.end() + 1]
    if after not in (b"", b"\n", b"\r", b" ") or NAME_IN_CODE.match(value):
        return False
    return is_strong_password(value) and bool(DIGITS.search(value)) and not is_placeholder(value)


def key_block(match: Match) -> bool:
    """Returns whether the body of a key is random, and is not one of documentation."""
    body = match["body"]
    return bits(body) >= MIN_KEY_BITS and b"EXAMPLE" not in body


def named_value(match: Match) -> bool:
    """Returns whether the value beside a telling name is random, or a strong password."""
    value = secret(match)
    if is_placeholder(value) or TIME.match(value) or value.isdigit() or is_counted(value):
        return False
    name = match.string[max(0, match.start() - NAME_BYTES) : match.start("secret")]
    if PUBLIC_NAME.search(name):
        return False
    if UUID.match(value):
        return UUID_NAME.search(name) is not None
    after = match.string[match.end() : match.end() + 1]
    before = match.string[match.start("secret") - 1 : match.start("secret")]
    if before not in QUOTES and (after not in ENDS or DOTTED_NAME.match(value)):
        return False  # the name of a function, or a part of an expression
    is_password = PASSWORD_NAME.search(match.string, match.start(), match.start("secret"))
    if is_password and (before in QUOTES or match[0].lstrip(b" \n\t\"'`").startswith(b"-")):
        return is_strong_password(value)
    return looks_random(value)


def is_placeholder(value: bytes) -> bool:
    return bool(FILLER.search(value) or PLACEHOLDER.search(value))


def is_strong_password(value: bytes) -> bool:
    classes = sum(letters.search(value) is not None for letters in CLASSES)
    if len(value) < MIN_PASSWORD_CHARS or CONSTANT.match(value):
        return False
    return classes >= MIN_PASSWORD_CLASSES


def is_counted(value: bytes) -> bool:
    """Returns whether a person typed the digits or the letters in their order: 123a456b, abcd12."""
    # Of a long random value the few digits may be in order by chance.
    least = max(MIN_COUNTED_CHARS, len(value) // 4)
    return any(
        len(chars) >= least
        and sum(after - before == 1 for before, after in pairwise(chars)) * 2 >= len(chars)
        for chars in (b"".join(DIGITS.findall(value)), b"".join(LETTERS.findall(value)))
    )


def looks_random(value: bytes) -> bool:
    """Returns whether a value is neither words nor a name: letters and digits in turn, in no
    order that a person would choose."""
    if HEX.match(value):
        return len(value) >= MIN_HEX_CHARS and bits(value) >= MIN_HEX_BITS
    longest = max(re.split(rb"[^0-9A-Za-z]", value), key=len)
    if len(value) < MIN_KEY_CHARS or len(longest) < MIN_KEY_CHARS // 2:
        return False
    return len(DIGITS.findall(longest)) >= 2 and bits(value) >= MIN_KEY_BITS


def bits(value: bytes) -> float:
    """Returns the entropy of a value by its own characters, in bits a character."""
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)
