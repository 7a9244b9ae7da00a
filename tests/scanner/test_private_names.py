from __future__ import annotations

import pytest

from casfs.scanner.private_names import is_private, private_names

PRIVATE = (
    ".env .env.local .env.production .env.example.local id_rsa id_ed25519 id_ecdsa_sk .netrc "
    "_netrc .pgpass .pypirc .git-credentials .htpasswd .my.cnf .s3cfg credentials credentials.json "
    "credentials.yml kubeconfig a.keystore b.jks c.p12 d.pfx e.kdbx service-account.json "
    "service_account_prod.json client_secret_17.json secrets.yaml .env~ prod.env app-1.env "
    ".netrc.bak .pgpass.old id_rsa.orig secrets.yaml.swp credentials.1"
).split()
WORK = (
    ".env.example .env.sample .env.template .env.dist .env.defaults .env.prod.example .envrc env "
    "environment.env.py id_rsa.pub server.pem server.key credentials.py my.credentials .npmrc "
    "terraform.tfstate config.json netrc p12 example.env sample.env test.env .env.example~"
).split()


@pytest.mark.parametrize("name", PRIVATE)
def test_a_name_of_secrets(name: str) -> None:
    assert is_private(name.encode())


@pytest.mark.parametrize("name", WORK)
def test_a_name_of_work(name: str) -> None:
    assert not is_private(name.encode())


def test_names_of_a_directory() -> None:
    names = [name.encode() for pair in zip(PRIVATE, WORK, strict=False) for name in pair]
    assert private_names(names) == [name for name in names if is_private(name)]
    assert private_names([]) == []
