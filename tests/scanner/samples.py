"""Secrets of every kind, put together here so that none stands in a file of the project."""

from __future__ import annotations

import base64
import random
import string
import zlib

WORD = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
BASE32 = string.ascii_uppercase + "234567"
DASHED = WORD + "-_"

# Kind: the parts of a format, each either text or (alphabet, length).
FORMATS: dict[str, tuple[str | tuple[str, int], ...]] = {
    "1password-key": ("A3-", (UPPER, 6), "-", (UPPER, 11), *("-", (UPPER, 5)) * 3),
    "1password-token": ("ops_", "eyJ", (WORD, 300)),
    "age-key": ("AGE-SECRET-KEY-1", (UPPER, 58)),
    "anthropic-key": ("sk-ant-", "api03-", (DASHED, 93), "AA"),
    "atlassian-token": ("ATATT3", (WORD, 180)),
    "aws-access-key": ("AK", "IA", (BASE32, 16)),
    "aws-bedrock-key": ("ABSK", (WORD, 110)),
    "aws-temporary-token": ("IQoJb3JpZ2lu", (WORD, 300)),
    "azure-client-secret": ((WORD, 3), "8Q~", (WORD, 34)),
    "databricks-token": ("dapi", (HEX, 32)),
    "digitalocean-token": ("dop_v1_", (HEX, 64)),
    "docker-token": ("dckr_pat_", (WORD, 27)),
    "doppler-token": ("dp.st.", (WORD, 43)),
    "facebook-token": ("EA", "AM", (WORD, 120)),
    "flutterwave-key": ("FLWSECK-", (HEX, 32), "-X"),
    "fly-token": ("fo1_", (WORD, 43)),
    "gitlab-token": ("glpat-", (WORD, 20)),
    "google-key": ("AIza", (DASHED[:-2], 35)),
    "google-oauth-secret": ("GOCSPX-", (WORD, 28)),
    "google-oauth-token": ("ya29.", (WORD, 90)),
    "grafana-token": ("glsa_", (WORD, 32), "_", (HEX, 8)),
    "groq-key": ("gsk_", (WORD, 52)),
    "heroku-key": ("HRKU-AA", (WORD, 58)),
    "huggingface-token": ("hf_", (string.ascii_letters, 34)),
    "linear-key": ("lin_api_", (WORD, 40)),
    "mailgun-key": ("key-", (HEX, 32)),
    "new-relic-key": ("NRAK-", (UPPER, 27)),
    "notion-token": ("ntn_", (WORD, 46)),
    "npm-token": ("npm_", (WORD, 36)),
    "openai-key": ("sk-proj-", (WORD, 40), "T3Blbk", "FJ", (WORD, 40)),
    "openrouter-key": ("sk-or-v1-", (HEX, 64)),
    "openshift-token": ("sha256~", (WORD, 43)),
    "perplexity-key": ("pplx-", (WORD, 48)),
    "postman-key": ("PMAK-", (HEX, 24), "-", (HEX, 34)),
    "pulumi-token": ("pul-", (HEX, 40)),
    "pypi-token": ("pypi-", "AgEIcHlwaS5vcmc", (WORD, 120)),
    "replicate-token": ("r8_", (WORD, 37)),
    "rubygems-key": ("rubygems_", (HEX, 48)),
    "sendgrid-key": ("SG.", (WORD, 22), ".", (WORD, 43)),
    "sentry-token": ("sntryu_", (HEX, 64)),
    "shopify-token": ("shpat_", (HEX, 32)),
    "slack-token": ("xoxb-", ("123456789", 12), "-", ("123456789", 12), "-", (WORD, 24)),
    "sonar-token": ("squ_", (HEX, 40)),
    "sourcegraph-token": ("sgp_", (HEX, 16), "_", (HEX, 40)),
    "square-token": ("sq0csp-", (WORD, 43)),
    "stripe-key": ("sk_live_", (WORD, 24)),
    "tailscale-key": ("tskey-auth-", (WORD, 17), "-", (WORD, 32)),
    "telegram-token": (("123456789", 9), ":AA", (WORD, 33)),
    "terraform-token": ((WORD, 14), ".atlasv1.", (WORD, 67)),
    "twilio-key": ("SK", (HEX, 32)),
    "twitter-token": ("A" * 21, (WORD, 80)),
    "vault-token": ("hvs.", (WORD, 92)),
    "xai-key": ("xai-", (WORD, 80)),
}


def build(kind: str, seed: int = 0) -> str:
    """Returns a secret of that kind; the same for the same seed."""
    source = random.Random(f"{kind} {seed}")
    return "".join(
        part if isinstance(part, str) else "".join(source.choices(part[0], k=part[1]))
        for part in FORMATS[kind]
    )


def github_token(seed: int = 0) -> str:
    body = "".join(random.Random(seed).choices(WORD, k=30))
    alphabet = string.digits + string.ascii_uppercase + string.ascii_lowercase
    rest = zlib.crc32(body.encode())
    checksum = ""
    for _ in range(6):
        rest, digit = divmod(rest, 62)
        checksum = alphabet[digit] + checksum
    return f"ghp_{body}{checksum}"


def web_token() -> str:
    parts = [
        '{"alg":"HS256","typ":"JWT"}',
        '{"sub":"u-17","iat":1700000000}',
        "s" * 12 + "igna7ure",
    ]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def private_key(label: str = "RSA PRIVATE KEY", lines: int = 12) -> str:
    source = random.Random(label)
    body = "\n".join("".join(source.choices(WORD + "+/", k=64)) for _ in range(lines))
    return f"-----BEGIN {label}-----\n{body}\nQ5=\n-----END {label}-----"


def word(count: int, seed: int = 0) -> str:
    """Returns random letters and digits."""
    return "".join(random.Random(f"word {seed}").choices(WORD, k=count))


# Kind: a text, and the secret in it.
TEAMS = f"{word(36)}@{word(36)}/IncomingWebhook/{word(32)}/{word(36)}"
IN_CONTEXT: dict[str, tuple[str, str]] = {
    "github-token": (f"token: {github_token()}", github_token()),
    "jwt": (f"Cookie: session={web_token()};", web_token()),
    "private-key": (f"key: |\n{private_key()}\n", private_key()),
    "aws-secret-key": (f"AWS_SECRET_ACCESS_KEY={word(40)}\n", word(40)),
    "azure-key": (f"AccountName=a;AccountKey={word(86)}==;", word(86) + "=="),
    "bearer-token": (f"curl -H 'Authorization: Bearer {word(32)}'", word(32)),
    "curl-key": (f"curl -u {word(16)}: https://a.b", word(16)),
    "curl-header": (f"curl -H 'X-Api-Key: {word(14)}'", word(14)),
    "curl-password": (f"curl -s -u app:{word(16)} https://a.b", word(16)),
    "discord-token": (
        f'DISCORD = "M{word(25)}.{word(6, 1)}.{word(38, 2)}"',
        f"M{word(25)}.{word(6, 1)}.{word(38, 2)}",
    ),
    "discord-webhook": (f"https://discord.com/api/webhooks/{'123456789' * 2}/{word(68)}", word(68)),
    "teams-webhook": (f"https://a.webhook.office.com/webhookb2/{TEAMS}", TEAMS),
    "slack-webhook": (f"https://hooks.slack.com/services/T{word(44)}", f"T{word(44)}"),
    "url-password": ("postgres://app:k9Lm2x@db.local/x", "k9Lm2x"),
    "docker-auth": ('{"auths": {"a.b": {"auth": "am9lOms5TG0yeFEh"}}}', "am9lOms5TG0yeFEh"),
    "command-option": (f"tool --api-key {word(24)} x", word(24)),
    "variable-default": (f'getenv("API_KEY", "{word(24)}")', word(24)),
    "yaml-password": ("db:\n  password: Ab3-s4fe!xQ9\n", "Ab3-s4fe!xQ9"),
    "high-entropy": (f'"db_password": "{word(20)}"', word(20)),
}
