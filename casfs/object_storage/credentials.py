"""The usual AWS files: credentials, region and endpoint of a profile.

The S3 client reads the environment by itself, but not `~/.aws/credentials` and `~/.aws/config`.
A text of these files is never repeated in a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from configparser import Error, RawConfigParser
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

from casfs.errors import AccessDenied, Failed, Invalid

REREAD = timedelta(minutes=5)  # temporary credentials are replaced in the files
KEY_ID, SECRET, TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
OTHER_SOURCES = (  # of credentials, which the client reads
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class Credential(TypedDict):
    access_key_id: str
    secret_access_key: str
    token: NotRequired[str | None]
    expires_at: datetime | None


class Access(NamedTuple):
    """What a client needs beside the bucket. `credential`: None where it finds them itself."""

    region: str | None
    endpoint: str | None
    credential: Callable[[], Credential] | None


def access() -> Access:
    """Returns what environment and files say. Raises AccessDenied where AWS_PROFILE names a
    profile without credentials; Invalid for a file that cannot be parsed."""
    settings = _profile(os.environ)
    named = "AWS_PROFILE" in os.environ
    credential = None
    if not any(name in os.environ for name in OTHER_SOURCES) and (KEY_ID in settings or named):
        _credential()
        credential = _credential
    return Access(
        _first(REGIONS) or settings.get("region"),
        _first(ENDPOINTS) or settings.get("endpoint_url"),
        credential,
    )


def _first(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _credential() -> Credential:
    found = _profile(os.environ)
    try:
        key_id, secret = found[KEY_ID], found[SECRET]
    except KeyError:
        name = os.environ.get("AWS_PROFILE", "default")
        raise AccessDenied(
            f"profile {name!r} of ~/.aws holds no {KEY_ID} with its {SECRET} (roles, SSO and "
            "programs are not read); put them there, or into the environment"
        ) from None
    expires = datetime.now(UTC) + REREAD
    return Credential(
        access_key_id=key_id,
        secret_access_key=secret,
        token=found.get(TOKEN),
        expires_at=expires,
    )


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """The settings of the profile, of both files."""
    name = env.get("AWS_PROFILE", "default")
    aws = Path(env.get("HOME") or Path.home()) / ".aws"
    config = Path(env.get("AWS_CONFIG_FILE") or aws / "config").expanduser()
    shared = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or aws / "credentials").expanduser()
    section = name if name == "default" else f"profile {name}"
    return _section(config, section) | _section(shared, name)


def _section(path: Path, name: str) -> dict[str, str]:
    parser = RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from error
    except (Error, UnicodeDecodeError):
        raise Invalid(f"{path}: not a file of AWS settings; correct it") from None
    return dict(parser[name]) if parser.has_section(name) else {}
