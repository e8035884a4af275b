"""Servers on loopback for sessions with a list of hosts: HTTP and HTTPS with a certificate authority of the test's own.

No address outside loopback is contacted: `host-addresses` leads every name here, and `private-networks` lets it.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.server
import io
import json
import os
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HELLO = "hello from upstream"
NAMES = ["pkg.test", "files.pkg.test", "git.test", "npm.test", "api.test"]


class Upstream:
    """A web server on two loopback ports, one of them with TLS.

    Attributes:
        directory: Readable by everybody; has `ca.pem`.
        requests: Lines of the requests that came.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="rpl-up-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.files: dict[str, bytes] = {"/": f"{HELLO}\n".encode()}
        _add_wheel(self.files)
        _add_npm_package(self.files)
        _add_repository(self.files, self.directory)
        certificate = _write_certificates(self.directory)
        self._servers = [self._serve(None), self._serve(certificate)]
        self.http, self.https = (int(server.server_address[1]) for server in self._servers)
        (self.directory / "ca.pem").chmod(0o644)

    def _serve(self, certificate: Path | None) -> http.server.ThreadingHTTPServer:
        upstream = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                upstream.requests.append(self.requestline)
                upstream.headers.append(dict(self.headers))
                body = upstream.files.get(self.path.split("?")[0])
                if self.path.startswith("/echo"):
                    body = json.dumps(dict(self.headers)).encode()
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", "text/html" if self.path.startswith("/simple") else "text/plain")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body or b"")

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # clients that go away are part of the tests

        server = Server(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        subprocess.run(["rm", "-rf", str(self.directory)], check=True)

    def host_addresses(self, tls: bool, names: Sequence[str] = NAMES) -> list[str]:
        """Return where names lead: to the port with TLS or the one without."""
        port = self.https if tls else self.http
        return [f"{name}=127.0.0.1:{port}" for name in names]

    def config(self, allowed: Sequence[str], *lines: str, tls: bool = False, more: Sequence[str] = ()) -> str:
        """Return the config of a broker whose sessions may reach these hosts."""
        text = [
            "[sandbox]",
            'network = "list"',
            f"allowed-hosts = {json.dumps([*allowed])}",
            f"host-addresses = {json.dumps([*self.host_addresses(tls), *more])}",
            'private-networks = ["127.0.0.0/8"]',
            f'readable-paths = ["{self.directory}"]',
        ]
        return "\n".join([*text, *lines]) + "\n"

    @property
    def trust(self) -> list[str]:
        """Return the variables by which clients trust the certificate authority."""
        path = self.directory / "ca.pem"
        names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS")
        return [f"{name}={path}" for name in (*names, "PIP_CERT", "npm_config_cafile")]


def listen_raw(answer: bytes) -> tuple[socket.socket, int]:
    """Return a listening socket that answers each connection with these bytes, and its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(4096)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(2)
                while connection.recv(4096):  # closed with unread bytes, the answer would be lost
                    pass

    threading.Thread(target=run, daemon=True).start()
    return server, server.getsockname()[1]


def _write_certificates(directory: Path) -> Path:
    """Write a certificate authority and a certificate for all names; return the file of the latter with its key."""
    now = datetime.datetime.now(datetime.UTC)

    def build(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
        )

    root, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    identifier = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    authority = (
        build("test authority", "test authority", root)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(root, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.DNSName(name) for name in NAMES])
    certificate = (
        build("test server", "test authority", leaf)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(root, hashes.SHA256())
    )
    (directory / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    secret = leaf.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / "server.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    return path


def _add_wheel(files: dict[str, bytes]) -> None:
    """Add a package index with one wheel."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        wheel.writestr("demo.py", "VALUE = 1\n")
        wheel.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr(
            "demo-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("demo-1.0.dist-info/RECORD", "demo.py,,\ndemo-1.0.dist-info/METADATA,,\n")
    digest = hashlib.sha256(data.getvalue()).hexdigest()
    name = "demo-1.0-py3-none-any.whl"
    files[f"/files/{name}"] = data.getvalue()
    files["/simple/demo/"] = f'<a href="/files/{name}#sha256={digest}">{name}</a>'.encode()


def _add_npm_package(files: dict[str, bytes]) -> None:
    """Add an npm registry with one package."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        text = json.dumps({"name": "demo", "version": "1.0.0"}).encode()
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(data.getvalue()).digest()).decode()
    version = {
        "name": "demo",
        "version": "1.0.0",
        "dist": {"tarball": "https://npm.test/demo/-/demo-1.0.0.tgz", "integrity": integrity},
    }
    document = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    files["/demo"] = json.dumps(document).encode()
    files["/demo/-/demo-1.0.0.tgz"] = data.getvalue()


def _add_repository(files: dict[str, bytes], directory: Path) -> None:
    """Add a git repository, served as plain files."""
    work = directory / "repository"
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    author = ["-c", "user.name=test", "-c", "user.email=test@pkg.test"]
    for command in (
        ["git", "init", "-q", "-b", "main", str(work)],
        ["git", "-C", str(work), *author, "commit", "-q", "--allow-empty", "-m", "first"],
        ["git", "-C", str(work), "update-server-info"],
    ):
        subprocess.run(command, check=True, env=environ, stdin=subprocess.DEVNULL)
    git = work / ".git"
    for path in git.rglob("*"):
        if path.is_file():
            files[f"/demo.git/{path.relative_to(git)}"] = path.read_bytes()
