"""Names of files that hold secrets and nothing else.

`*.pem` and `*.key` are none of them: most hold certificates and public keys. Nor are `.npmrc`,
`.envrc`, `kubeconfig`-like YAML under other names and `config.json`: those are the scanner's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EXAMPLE = rb"(?:example|sample|template|dist|defaults?|schema)"
BACKUP = rb"(?:~|\.(?:bak|backup|old|orig|save|swp|\d{1,2}))?"  # what an editor leaves beside it
NAMES = re.compile(  # in names joined by NUL, which one search over all is cheapest for
    rb"\0((?:\.env(?:\.(?!(?:[^\0]*\.)?%b%b\0)[^\0]+)?"
    rb"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?"
    rb"|[._]netrc|\.pgpass|\.pypirc|\.git-credentials|\.htpasswd|\.my\.cnf|\.s3cfg|\.boto"
    rb"|\.vault-token|\.dockercfg|kubeconfig"
    rb"|credentials(?:\.(?:json|toml|ya?ml|csv|ini))?|client_secret[^\0]*\.json"
    rb"|service[_-]account[^\0]*\.json|secrets?\.(?:env|json|toml|ya?ml)"
    rb"|(?!(?:%b|test)\.)[\w-]+\.env"
    rb"|[^\0]*\.(?:keystore|jks|p12|pfx|kdbx?|ppk|ovpn))%b)(?=\0)"
    % (EXAMPLE, BACKUP, EXAMPLE, BACKUP)
)


def is_private(name: bytes) -> bool:
    """Returns whether a file of this name, without its directory, holds only secrets."""
    return bool(private_names([name]))


def private_names(names: Iterable[bytes]) -> list[bytes]:
    """Returns those of a directory's names that `is_private` is true for, in their order."""
    return NAMES.findall(b"\0%b\0" % b"\0".join(names))
