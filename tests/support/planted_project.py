"""A project with secrets of thirty kinds: by the names of files, and by what is in them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tests.scanner import samples

SEED = 40  # and up: one secret for each file
PASSWORD = "Sup3r-s4fe-xQ{}!k"  # of the notations with a telling name
ORDINARY = "production"


class Planted(NamedTuple):
    """`content` of a file, and the secret in it as its reader has it."""

    content: bytes
    secret: str

    @property
    def traces(self) -> list[bytes]:
        """The forms of the secret that a file, an output or a page may have."""
        plain = self.secret.encode()
        coded = [base64.b64encode(b" " * shift + plain)[4:-4] for shift in range(3)]
        wide = [self.secret.encode("utf-16-le"), self.secret.encode("utf-16-be")]
        percent = quote(self.secret, safe="").encode()
        escaped = json.dumps(self.secret)[1:-1].encode()
        return [one for one in (plain, percent, escaped, *coded, *wide) if len(one) >= 8]


def _password(number: int) -> str:
    return PASSWORD.format(number)


def _by_name() -> dict[str, Planted]:
    words = {name: samples.word(14, SEED + at) for at, name in enumerate(NAMES)}
    return {name: Planted(NAMES[name].format(words[name]).encode(), words[name]) for name in NAMES}


NAMES = {
    ".env": "MODE=" + ORDINARY + "\nDB_PASSWORD={}\n",
    "prod.env": "API_TOKEN={}\n",
    ".env.local": "export SECRET_KEY='{}'\n",
    ".netrc": "machine example.org login me password {}\n",
    ".pgpass": "localhost:5432:db:me:{}\n",
    "config/id_ed25519": "{}-of-a-key-file\n",
    ".git-credentials": "https://me:{}@example.org\n",
    "secrets.yaml": "database:\n  password: {}\n",
    "credentials.json": '{{"client": "me", "password": "{}"}}\n',
}


def _by_content() -> dict[str, Planted]:
    token = {kind: samples.build(kind, SEED) for kind in samples.FORMATS}
    key = samples.private_key(lines=4)
    github = samples.github_token(SEED)
    wrapped: dict[str, tuple[bytes, str]] = {
        "alone.txt": (github.encode(), github),
        "coloured.log": (f"a \x1b[31m{token['npm-token']}\x1b[0m\n".encode(), token["npm-token"]),
        "data.json": (_json(f"x\n{token['stripe-key']}"), token["stripe-key"]),
        "nested.json": (_json(json.dumps([token["slack-token"]])), token["slack-token"]),
        "url.txt": (f"x?t%3D{quote(token['sendgrid-key'])}&y".encode(), token["sendgrid-key"]),
        "coded.txt": (
            base64.b64encode(f"k: {token['grafana-token']}".encode()),
            token["grafana-token"],
        ),
        "change.diff": (
            f"@@ -1 +1 @@\n-x\n+{token['gitlab-token']}\n".encode(),
            token["gitlab-token"],
        ),
        "wide.txt": (f"key {token['linear-key']}\n".encode("utf-16"), token["linear-key"]),
        "key.txt": (key.encode(), key.splitlines()[1]),
        "web.txt": (samples.web_token().encode(), samples.web_token().rpartition(".")[2]),
        "aws.ini": (
            f"aws_access_key_id = {token['aws-access-key']}\n".encode(),
            token["aws-access-key"],
        ),
        "openai.sh": (f"export K={token['openai-key']}\n".encode(), token["openai-key"]),
        "google.js": (f"const k = '{token['google-key']}'\n".encode(), token["google-key"]),
    }
    notations = {
        "conf.yaml": "password: {}\n",
        "main.rs": 'const PASSWORD: &str = "{}";\n',
        "main.ts": 'const password: string = "{}";\n',
        "app.py": 'os.environ.get("DB_PASSWORD", "{}")\n',
        "run.sh": "mysql --password {} db\n",
        "note.ipynb": '{{"cells": [{{"source": ["password = \\"{}\\"\\n"]}}]}}\n',
        "settings.py": 'PASSWORD = "{}"\n',
        "db.toml": 'password = "{}"\n',
    }
    for at, (name, text) in enumerate(notations.items()):
        wrapped[name] = (text.format(_password(at)).encode(), _password(at))
    return {f"src/{name}": Planted(*one) for name, one in wrapped.items()}


def _json(text: str) -> bytes:
    return json.dumps({"content": text}).encode()


PLANTED = {**_by_name(), **_by_content()}


def write(place: Path) -> Path:
    """Writes the project, with some files that are work."""
    for name, planted in PLANTED.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(planted.content)
    (place / "README.md").write_text(f"# A project in {ORDINARY}\n")
    (place / "src/work.py").write_text("print()\n")
    return place


def traces_in(data: bytes) -> list[str]:
    """Returns the files whose secrets are in some bytes."""
    return [name for name, planted in PLANTED.items() if any(one in data for one in planted.traces)]
