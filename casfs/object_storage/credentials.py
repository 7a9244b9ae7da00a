"""The usual AWS files: credentials, region and endpoint of a profile.

The S3 client reads the environment by itself, but not `~/.aws/credentials` and `~/.aws/config`.
No text of these files comes into a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from configparser import Error, RawConfigParser
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from casfs.errors import AccessDenied, Failed, Invalid

REREAD = timedelta(minutes=5)  # temporary credentials are replaced in the files
KEY_ID = "aws_access_key_id"
SECRET = "aws_secret_access_key"
TOKEN = "aws_session_token"
ELSEWHERE = (  # credentials that the client finds
    "AWS_ACCESS_KEY_ID AWS_SKIP_SIGNATURE AWS_WEB_IDENTITY_TOKEN_FILE "
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_CREDENTIALS_FULL_URI"
).split()
SETTINGS = {  # of the client: the variables, and the name in the files
    "region": ("AWS_REGION AWS_DEFAULT_REGION", "region"),
    "endpoint": ("AWS_ENDPOINT_URL_S3 AWS_ENDPOINT_URL AWS_ENDPOINT", "endpoint_url"),
}


def access() -> tuple[dict[str, Any], Callable[[], Any] | None]:
    """Returns region and endpoint where they are set, and what provides credentials, None where
    the client finds them. Raises AccessDenied where AWS_PROFILE names a profile without
    credentials; Invalid for a file that cannot be parsed."""
    profile = _profile()
    settings = {}
    for name, (variables, option) in SETTINGS.items():
        env_values = [
            os.environ[variable] for variable in variables.split() if os.environ.get(variable)
        ]
        if value := [*env_values, profile.get(option)][0]:
            settings[name] = value
    wanted = KEY_ID in profile or "AWS_PROFILE" in os.environ
    if not wanted or any(name in os.environ for name in ELSEWHERE):
        return settings, None
    _credential()
    return settings, _credential


def _credential() -> dict[str, Any]:
    profile = _profile()
    if not {KEY_ID, SECRET} <= profile.keys():
        name = os.environ.get("AWS_PROFILE", "default")
        raise AccessDenied(
            f"profile {name!r} of ~/.aws holds no {KEY_ID} with its {SECRET} (roles, SSO and "
            "programs are not read); put them there, or into the environment"
        )
    keys = {"access_key_id": profile[KEY_ID], "secret_access_key": profile[SECRET]}
    return {**keys, "token": profile.get(TOKEN), "expires_at": datetime.now(UTC) + REREAD}


def _profile() -> dict[str, str]:
    """The settings of the profile, of both files."""
    name = os.environ.get("AWS_PROFILE", "default")
    section = name if name == "default" else f"profile {name}"
    config = _section("AWS_CONFIG_FILE", "~/.aws/config", section)
    return config | _section("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name)


def _section(variable: str, usual: str, name: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or usual).expanduser()
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
