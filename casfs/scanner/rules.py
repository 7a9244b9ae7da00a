"""The formats of secrets, written from what their providers publish.

A rule's pattern holds the secret in its group `secret`, or is the secret. All patterns together are
one database of `casfs.scanner.hit_finder`, so they keep to its dialect: no look-around and no back
references, and a name of a group only where it is `secret`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from casfs.scanner import evidence, spellings

Check = Callable[["re.Match[bytes]"], bool]

LAST_COUNT = re.compile(r"\{(\d+)(?:,\d*)?\}(\)*)\Z")
NO_WORD_AFTER = r"(?![\w-])"
WORD_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
ESCAPE_BYTES = 24
ESCAPE_BEFORE = re.compile(
    rb"(?:\\[nrtbfv0]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|%(?:25)*[0-9a-fA-F]{2}"
    rb"|(?:\x1b\[|" + spellings.ESCAPED_COLOUR.encode() + rb")[0-?]*[@-~])\Z"
)
FRONT_CHARS = 12  # of the last repetition: more only makes the database slower to build
REACH_BYTES = 512  # between the start of a secret, or of its name, and the end of a hit


@dataclass(frozen=True)
class Rule:
    """`check` decides on what matched. `reach`: bytes that a match may begin before the end of a
    hit. `is_word`: a match ends before another letter, digit, underscore or dash, and begins after
    one only where it begins with a name."""

    kind: str
    pattern: str
    check: Check = evidence.always
    front: str = ""
    reach: int = REACH_BYTES
    is_word: bool = True

    @property
    def expression(self) -> str:
        """What the library looks for: the pattern up to where it is telling, so that there is one
        hit in a match."""
        return self.front or LAST_COUNT.sub(_shortened, self.pattern)

    @property
    def secret_group(self) -> str | int:
        return "secret" if "(?P<secret>" in self.pattern else 0

    @cached_property
    def front_regex(self) -> re.Pattern[bytes]:
        return re.compile(self.expression.encode())

    @cached_property
    def regex(self) -> re.Pattern[bytes]:
        after = NO_WORD_AFTER if self.is_word else ""
        return re.compile(f"(?:{self.pattern}){after}".encode())

    def begins_at(self, data: bytes, offset: int) -> bool:
        """Returns whether a match may begin there: not within a word, where it has no name. The
        end of an escape is none: `\\n`, `%3D`, a colour, nor is the dash of a removed line."""
        if (
            self.secret_group
            or not self.is_word
            or offset == 0
            or data[offset - 1] not in WORD_BYTES
        ):
            return True
        end = offset
        if data[offset - 1 : offset] == b"-":
            end -= 1
            if end == 0 or data[end - 1] not in WORD_BYTES or data[end - 1 : end] == b"-":
                return True
        return ESCAPE_BEFORE.search(data, max(0, end - ESCAPE_BYTES), end) is not None


def _shortened(count: re.Match[str]) -> str:
    return f"{{{min(int(count[1]), FRONT_CHARS)}}}{count[2]}"


# Kind to the whole format, where a prefix tells.
TOKENS = {
    "1password-key": r"A3-[0-9A-Z]{6}-(?:[0-9A-Z]{6}-[0-9A-Z]{5}|[0-9A-Z]{11})(?:-[0-9A-Z]{5}){3}",
    "1password-token": r"ops_eyJ[\w+/=-]{250,}",
    "age-key": r"AGE-SECRET-KEY-1[0-9A-Z]{58}",
    "anthropic-key": r"sk-ant-[a-z]{3,5}\d\d-[\w-]{80,}",
    "atlassian-token": r"ATATT3[\w=-]{100,}",
    "aws-bedrock-key": (
        r"ABSK[A-Za-z0-9+/]{109,}={0,2}|bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t[\w+/=-]*"
    ),
    "aws-temporary-token": r"IQoJb3JpZ2lu[A-Za-z0-9/+=]{100,}",
    "azure-client-secret": r"[\w~.]{3}\dQ~[\w~.-]{31,34}",
    "databricks-token": r"dapi[0-9a-f]{32}",
    "digitalocean-token": r"do[opr]_v1_[0-9a-f]{64}",
    "docker-token": r"dckr_[po]at_[\w-]{27,}",
    "doppler-token": r"dp\.[a-z]{2,5}\.[0-9A-Za-z]{40,}",
    "facebook-token": r"EAA[A-Za-z][0-9A-Za-z]{90,}|\d{15,16}\|[\w-]{27}",
    "flutterwave-key": r"FLWSECK(?:_TEST)?-[0-9a-h]{32}-X",
    "fly-token": r"fo1_[\w-]{43}|fm[12][ar]?_[A-Za-z0-9+/=]{100,}",
    "gitlab-token": r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-[\w.-]{20,}",
    "google-key": r"AIza[\w-]{35}",
    "google-oauth-secret": r"GOCSPX-[\w-]{28}",
    "google-oauth-token": r"ya29\.[\w-]{40,}",
    "grafana-token": r"glsa_[0-9A-Za-z]{32}_[0-9a-f]{8}",
    "groq-key": r"gsk_[0-9A-Za-z]{52}",
    "heroku-key": r"HRKU-AA[\w-]{58}",
    "linear-key": r"lin_api_[0-9A-Za-z]{40}",
    "mailgun-key": r"key-[0-9a-f]{32}",
    "new-relic-key": r"NRAK-[0-9A-Z]{27}",
    "notion-token": r"ntn_[0-9A-Za-z]{46}",
    "npm-token": r"npm_[0-9A-Za-z]{36}",
    "openai-key": r"sk-[\w-]{20,}T3BlbkFJ[\w-]{20,}",
    "openrouter-key": r"sk-or-v1-[0-9a-f]{64}",
    "openshift-token": r"sha256~[\w-]{43}",
    "perplexity-key": r"pplx-[0-9A-Za-z]{48}",
    "postman-key": r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    "pulumi-token": r"pul-[0-9a-f]{40}",
    "pypi-token": r"pypi-AgE(?:IcHlwaS5vcmc|NdGVzdC5weXBpLm9yZw)[\w-]{50,}",
    "replicate-token": r"r8_[0-9A-Za-z]{37}",
    "rubygems-key": r"rubygems_[0-9a-f]{48}",
    "sendgrid-key": r"SG\.[\w-]{22}\.[\w-]{43}",
    "sentry-token": r"sntry[su]_[\w=+/-]{64,}",
    "shopify-token": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "slack-token": (
        r"xoxe(?:\.xox[bp])?-\d-\w{100,}|xapp-\d-\w+-\d+-\w{20,}"
        r"|xox[abeoprs]-(?:\d-)?\d{8,14}-(?:\w+-)*[0-9A-Za-z]{10,}"
    ),
    "sonar-token": r"sq[apu]_[0-9a-f]{40}",
    "sourcegraph-token": r"sgp_(?:[0-9a-fA-F]{16}_|local_)?[0-9a-fA-F]{40}",
    "square-token": r"sq0(?:atp|csp)-[\w-]{22,}",
    "stripe-key": r"[rs]k_(?:live|prod|test)_[0-9A-Za-z]{20,}",
    "tailscale-key": r"tskey-[a-z]{3,8}-[0-9A-Za-z-]{20,}",
    "telegram-token": r"\d{8,10}:AA[\w-]{33}",
    "terraform-token": r"[0-9A-Za-z]{14}\.atlasv1\.[\w=-]{60,}",
    "twilio-key": r"SK[0-9a-f]{32}",
    "twitter-token": r"A{21}[\w%]{60,}",
    "vault-token": r"hv[bs]\.[\w-]{24,}",
    "xai-key": r"xai-[0-9A-Za-z]{80}",
}

# From within a name to its value.
TYPE = r"(?: string|\s?:\s?&?(?:'static )?[A-Za-z][\w<>]{0,15})?"  # as in Go; in Rust, TypeScript
IS = rf"""[\w.-]*["'\]]*{TYPE}\s*(?:[?.]?[:=]{{1,4}}>?|>)\s*["'`]?"""
KEY = r"(?P<secret>[A-Za-z0-9/+]{40})"
NAMES = (  # the ends of the names of keys are cheaper than the names: api_key, access-key
    r"(?i:passw|passphrase|pwd|secret|token|credential|creds|_auth"
    r"|i[_-]?key|s[_-]?key|h[_-]?key|e[_-]?key|g[_-]?key|r[_-]?key|t[_-]?key)"
)
KEY_HEADER = r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
# Between two lines of a key: as JSON or code has it, quoted, in a diff, with the number or the name
# of the line in front (`cat -n`, `grep -n`, an agent's Read: two arrows and a bar in UTF-8).
GAP = (
    r"""(?:(?:\n|\\n)[\w./-]{1,120}[:-](?:\d{1,7}[:-])?|\\(?:[nrt]|u2192|u21e5|u2502)|\d{1,7}\b"""
    r"""|\xe2\x86\x92|\xe2\x87\xa5|\xe2\x94\x82|[\s\\"'`+,>|#*:;.)/-]){0,40}"""
)
KEY_BODY = (
    rf"(?:{GAP}[A-Z][\w-]{{2,20}}: [^\n\\]{{0,200}})*"  # Proc-Type, Version
    rf"(?P<body>(?:{GAP}[A-Za-z0-9+/=]{{16,}})++(?:{GAP}[A-Za-z0-9+/=]{{1,15}})?)"
    rf"(?:{GAP}-----END [A-Z0-9 ]{{0,40}}-----)?"
)
WORD = r"[\w+/=.~-]"

VALUE = r"(?P<secret>(?<=[\"'`])[^\"'`\s]{8,}|[^\"'`\s,;&<]{8,})"
OPTION = (  # of a command
    r"""(?:^|[\s"'`])--?(?:(?:[\w-]{0,24}-)?(?:pass|password|passwd|passphrase|pwd|secret"""
    r"""|(?:api|access|secret|private|service|auth)[_-]?key)|(?:(?:auth|access|api|bearer)-)?token)"""
    r"""[ =]["']?"""
)
RULES = (
    *(Rule(kind, pattern, check=evidence.varied) for kind, pattern in TOKENS.items()),
    Rule("github-token", r"gh[opsru]_[0-9A-Za-z]{36}", check=evidence.github_checksum),
    Rule("github-token", r"github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}", check=evidence.varied),
    Rule("huggingface-token", r"(?:hf|api_org)_[A-Za-z]{34}", check=evidence.varied),
    Rule("aws-access-key", r"A(?:[BKS]IA|CCA)[A-Z2-7]{16}", check=evidence.varied),
    Rule(
        "aws-secret-key",
        rf"(?i:secret_?(?:access_?)?key){IS}{KEY}",
        check=evidence.entropic,
    ),
    Rule(
        "azure-key",
        r"(?:Account|SharedAccess)Key=(?P<secret>[A-Za-z0-9+/]{43,86}={1,2})",
        front=r"(?:Account|SharedAccess)Key=[A-Za-z0-9+/]{40}",
    ),
    Rule(
        "bearer-token",
        rf"(?i:authorization{IS}\s?(?:bearer |(?:api-)?token |basic )?)(?P<secret>{WORD}{{20,}})",
        check=evidence.header_token,
    ),
    Rule(
        "curl-key",  # a key in place of a name, with an empty password
        r"""\s(?:-u|--user)[\s=]{1,4}["']?(?P<secret>[^\s:"'<$]{10,80}):["'\s]""",
        check=evidence.curl_key,
        is_word=False,
    ),
    Rule(
        "curl-password",
        r"""\s(?:-u|--user)[\s=]{1,4}["']?[^\s:"'<$]{0,80}["']?:["']?(?P<secret>[^\s"']{4,})""",
        check=evidence.curl_password,
        is_word=False,
    ),
    Rule(
        "curl-header",
        r"""\s(?:-H|--header)[\s=]{0,4}["'](?i:[\w-]{0,30}(?:token|key|secret))\s?:\s?"""
        r"""(?:\w{1,12} )?(?P<secret>[^\s"'\\]{10,})""",
        check=evidence.curl_header,
        front=r"""\s(?:-H|--header)[\s=]{0,4}["'](?i:[\w-]{0,30}(?:token|key|secret))\s?:""",
        is_word=False,
    ),
    Rule(
        "discord-token",
        rf"(?i:discord){IS}(?P<secret>[MNO][\w-]{{22,28}}\.[\w-]{{6}}\.[\w-]{{27,}})",
        front=rf"(?i:discord){IS}[MNO][\w-]{{22}}",
    ),
    Rule("discord-webhook", r"discord(?:app)?\.com/api/webhooks/\d{17,20}/(?P<secret>[\w-]{60,})"),
    Rule("jwt", r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}", check=evidence.web_token, reach=4096),
    Rule(
        "private-key",
        KEY_HEADER + KEY_BODY,
        check=evidence.key_block,
        front=KEY_HEADER,
        is_word=False,
    ),
    Rule(
        "docker-auth",
        r'"auth"\s?:\s{0,8}"(?P<secret>[A-Za-z0-9+/]{12,}={0,2})"',
        check=evidence.name_and_password,
        is_word=False,
    ),
    Rule(
        "command-option",
        rf"""{OPTION}{VALUE}""",
        check=evidence.named_value,
        front=rf"""{OPTION}\S{{0,40}}\d""",
        reach=128,
    ),
    Rule(
        "variable-default",
        rf"""(?i:env)[\w.:!]{{0,12}}[(\[]["'][\w.-]{{0,40}}{NAMES}[\w.-]*["'],\s?["']{VALUE}""",
        check=evidence.named_value,
        front=rf"""(?i:env)[\w.:!]{{0,12}}[(\[]["'][\w.-]{{0,40}}{NAMES}[\w.-]*["'],\s?["']\S{{0,40}}\d""",
        reach=160,
    ),
    Rule(
        "yaml-password",
        r"(?i:passw(?:or)?d|passphrase|pwd): {1,4}(?P<secret>[^\s\"'`,;]{10,})",
        check=evidence.yaml_password,
        front=r"(?i:passw(?:or)?d|passphrase|pwd): {1,4}[^\s\"'`,;]{10}",
        is_word=False,
    ),
    Rule("teams-webhook", r"webhook\.office\.com/webhookb2/(?P<secret>[\w@-]{36,}/[\w/-]{60,})"),
    Rule("slack-webhook", r"hooks\.slack\.com/\w{1,12}/(?P<secret>[\w/+-]{40,})"),
    Rule(
        "url-password",
        r"://[^\s/:@\"'<>]*:(?P<secret>[^\s/:@,\"'<>]{5,})@",
        check=evidence.url_password,
        is_word=False,
    ),
    Rule(
        "high-entropy",
        rf"{NAMES}{IS}{VALUE}",
        check=evidence.named_value,
        front=rf"{NAMES}{IS}(?:[\"'`]\S{{0,40}}|{WORD}{{8,40}})\d",
        reach=96,
    ),
)
