"""An npm registry on loopback with packages made by the test: nothing is fetched from anywhere else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "s3ntinel-of-the-registry"


class NpmRegistry:
    """Packages by name and version, for those who show the token."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, dict[str, Any]]] = {}
        self._archives: dict[str, bytes] = {}
        self.requests: list[str] = []

    def add(self, name: str, version: str, files: Mapping[str, str], **table: Any) -> None:
        """Add a package with these files; `table` is the rest of its `package.json`."""
        manifest = {"name": name, "version": version, "main": "main.js", **table}
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w:gz") as archive:
            for path, text in {**files, "package.json": json.dumps(manifest)}.items():
                entry = tarfile.TarInfo(f"package/{path}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        path = f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        self._archives[path] = body.getvalue()
        integrity = base64.b64encode(hashlib.sha512(body.getvalue()).digest()).decode()
        # As a mirror may have it, the address is another host's; the installer may reach the registry alone.
        dist = {"tarball": f"https://registry.npmjs.org{path}", "integrity": f"sha512-{integrity}"}
        self._versions.setdefault(name, {})[version] = {**manifest, "dist": dist}

    def find(self, path: str) -> bytes | None:
        """Return what is at a path of the registry."""
        path = unquote(path)
        self.requests.append(path)
        versions = self._versions.get(path[1:])
        if versions is None:
            return self._archives.get(path)
        latest = list(versions)[-1]
        return json.dumps({"name": path[1:], "dist-tags": {"latest": latest}, "versions": versions}).encode()


@contextmanager
def serve_npm(registry: NpmRegistry) -> Iterator[int]:
    """Serve a registry; yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            body = registry.find(self.path) if is_known else b""
            self.send_response(401 if not is_known else 404 if body is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
