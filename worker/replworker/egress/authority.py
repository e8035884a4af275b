"""Certificate authority of one session: certificates for the hosts of its secrets, which nobody else trusts.

The only file that knows `cryptography`, and loaded by a proxy with secrets alone.
"""

from __future__ import annotations

import datetime
import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 397  # clients refuse certificates that are valid for longer
_MAX_CONTEXTS = 256  # of one session
_NAME = "replctl: this session alone"
_PEM = serialization.Encoding.PEM


class SessionAuthority:
    """Authority that signs for hosts.

    Args:
        pem: Key and certificate of an earlier one; empty for a new one.
    """

    def __init__(self, pem: str = "") -> None:
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        if pem:
            key = serialization.load_pem_private_key(pem.encode(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self._key = key
            self._certificate = x509.load_pem_x509_certificate(pem.encode())
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._certificate = self._sign_itself()

    def certificate_pem(self) -> str:
        """Return its certificate, for those who are to trust it."""
        return self._certificate.public_bytes(_PEM).decode()

    def pem(self) -> str:
        """Return key and certificate, for a proxy that takes over."""
        return _key_pem(self._key).decode() + self.certificate_pem()

    def context_for(self, name: str) -> ssl.SSLContext:
        """Return a server's context with a certificate for a host."""
        if (known := self._contexts.get(name)) is not None:
            return known
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        chain = self._sign_for(name).public_bytes(_PEM) + _key_pem(self._leaf_key)
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(file, chain)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        if len(self._contexts) >= _MAX_CONTEXTS:
            self._contexts.clear()
        self._contexts[name] = context
        return context

    def _sign_itself(self) -> x509.Certificate:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            _builder(_NAME, _NAME, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _sign_for(self, name: str) -> x509.Certificate:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return (
            _builder(name[:64], _NAME, self._leaf_key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(purpose, critical=False)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS - 1))
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
