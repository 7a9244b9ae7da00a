"""S3 over TLS: a private authority is trusted where SSL_CERT_FILE names it, else refused."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from casfs.errors import CasfsError, Failed
from casfs.object_storage.location import open_storage
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_servers import S3Server


def certificate(
    path: Path, *, authority: bool, issued: tuple[str, ec.EllipticCurvePrivateKey] | None
) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = issued or (path.stem, key)
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (path.stem, issuer)
    ]
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(private)
    return key


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return tmp_path / "authority.pem"


@pytest.fixture
def secure(s3: S3Server, tmp_path: Path, authority: Path) -> Iterator[FaultProxy]:
    key = certificate(authority, authority=True, issued=None)
    server = tmp_path / "server.pem"
    certificate(server, authority=False, issued=("authority", key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server, server.with_suffix(".key"))
    with FaultProxy(s3.endpoint, context) as proxy:
        yield proxy


def test_a_trusted_authority(
    s3: S3Server, secure: FaultProxy, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    storage = open_storage(s3.url(), endpoint=secure.endpoint)
    storage.put("a", b"1")
    assert storage.get("a") == b"1"
    assert storage.server().startswith("SeaweedFS")


def test_an_unknown_authority_is_refused_at_once(s3: S3Server, secure: FaultProxy) -> None:
    storage = open_storage(s3.url(), endpoint=secure.endpoint, patience_s=0)
    with pytest.raises(Failed, match="its certificate is not trusted; SSL_CERT_FILE can name a CA"):
        storage.get("a")
    with pytest.raises(CasfsError):
        storage.now()
    assert secure.requests == []
