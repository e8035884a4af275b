"""A package index on loopback with wheels made by the test: nothing is fetched from anywhere else."""

from __future__ import annotations

import base64
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USER, PASSWORD = "reader", "s3ntinel-of-the-index"


class PackageIndex:
    """Wheels and source archives by name, served as PEP 503 asks for, to those who show the password."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.stalled = threading.Event()  # a request for a package named `slow` has come, and is never answered
        self.end = threading.Event()

    def add(self, name: str, version: str, modules: Mapping[str, str | bytes], requires: Sequence[str] = ()) -> None:
        """Add a wheel with these files."""
        info = f"{name}-{version}.dist-info"
        metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
        metadata += [f"Requires-Dist: {each}\n" for each in requires]
        files = {
            **modules,
            f"{info}/METADATA": "".join(metadata),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
        self.files.setdefault(name, {})[f"{name}-{version}-py3-none-any.whl"] = body.getvalue()

    def add_source(self, name: str, version: str, files: Mapping[str, str]) -> None:
        """Add a source archive."""
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w:gz") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(f"{name}-{version}/{path}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        self.files.setdefault(name, {})[f"{name}-{version}.tar.gz"] = body.getvalue()

    def page(self, name: str) -> bytes:
        links = "".join(f'<a href="/files/{name}/{file}">{file}</a>\n' for file in self.files[name])
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def find(self, path: str) -> bytes | None:
        """Return what is at a path of the index."""
        parts = path.strip("/").split("/")
        if parts[:1] == ["simple"] and len(parts) == 2:
            if parts[1] == "slow":
                self.stalled.set()
                self.end.wait(60)
            return self.page(parts[1]) if parts[1] in self.files else None
        return self.files.get(parts[1], {}).get(parts[2]) if parts[:1] == ["files"] and len(parts) == 3 else None


@contextmanager
def serve(index: PackageIndex) -> Iterator[str]:
    """Serve an index; yield its URL, with user and password."""
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = index.find(self.path) if self.headers.get("Authorization") == expected else b""
            self.send_response(401 if body == b"" else 404 if body is None else 200)
            self.send_header("Content-Type", "text/html" if self.path.startswith("/simple") else "application/zip")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index.end.clear()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://{USER}:{PASSWORD}@127.0.0.1:{server.server_port}/simple/"
    finally:
        index.end.set()
        server.shutdown()
        server.server_close()
        thread.join()
