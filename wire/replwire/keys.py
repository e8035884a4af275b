"""Keys and tokens of remote clients: files only, no cryptography.

The broker's directory `keys` has `server.toml` (its key pair), `clients/NAME` (authorized public keys) and
`tokens/NAME` (token digests). A client has one file with all it needs. Secrets are stored only in files with mode 0600.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from replwire.identifiers import name_error
from replwire.private_directories import make_private_directory

T = TypeVar("T", bound=msgspec.Struct)
_Z85_CHARS = 40  # a CURVE key as text (ZeroMQ RFC 32)


class InvalidKey(ValueError):
    """An invalid key or token. The message says why, without the secret."""


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair in Z85."""

    public: str
    secret: str


class ClientKey(msgspec.Struct, frozen=True):
    """Contents of a client's key file: its name, its key pair and the server's public key."""

    name: str
    server: str
    public: str
    secret: str


class KeyInfo(NamedTuple):
    """An entry of `keys list`."""

    name: str
    kind: str  # `key` or `token`
    since: float  # Unix time


def read_client_key(path: str) -> ClientKey:
    """Read a client's key file.

    Raises:
        InvalidKey: the file is unreadable, malformed or readable by others
    """
    return _read(Path(path), ClientKey)


def write_secret(path: Path, data: msgspec.Struct) -> None:
    """Write a new file with mode 0600.

    Raises:
        FileExistsError: a key is never overwritten
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(_toml(data))


class KeyStore:
    """The broker's key directory."""

    def __init__(self, state_dir: str) -> None:
        self._directory = Path(state_dir) / "keys"

    def server(self) -> KeyPair | None:
        """Return the broker's key pair, or None if it has none yet.

        Raises:
            InvalidKey: the file cannot be used
        """
        path = self._directory / "server.toml"
        return _read(path, KeyPair) if path.exists() else None

    def set_server(self, pair: KeyPair) -> None:
        """Store the broker's key pair."""
        with self._as_owner():
            self._make_directory("")
            write_secret(self._directory / "server.toml", pair)

    def allow(self, name: str, public: str) -> None:
        """Authorize a client's public key under a name.

        Raises:
            InvalidKey: the key or the name is invalid, or the name is taken
        """
        if len(public) != _Z85_CHARS or not public.isascii() or not public.isprintable():
            raise InvalidKey("not a public key: 40 characters of Z85")
        self._store("clients", name, public)

    def add_token(self, name: str, token: str) -> None:
        """Authorize a token under a name; only its digest is stored."""
        self._store("tokens", name, _digest(token))

    def _store(self, kind: str, name: str, text: str) -> None:
        if (why := name_error("key", name)) is not None:
            raise InvalidKey(why)
        with self._as_owner():
            directory = self._make_directory(kind)
            try:
                fd = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                raise InvalidKey(f"a {kind.removesuffix('s')} named {name} exists: revoke it first") from None
            with open(fd, "w") as file:
                file.write(text)

    def _make_directory(self, kind: str) -> Path:
        """Create a key directory and its parents, closed to other users."""
        make_private_directory(self._directory / kind)
        return self._directory / kind

    @contextmanager
    def _as_owner(self) -> Iterator[None]:
        """Act as the owner of the state directory while root.

        The owner has to read the files made there, and its symlinks may lead anywhere.
        """
        state = self._directory.parent
        owner = state.stat() if os.geteuid() == 0 and state.exists() else None
        if owner is None or owner.st_uid == 0:
            yield
            return
        gid, groups = os.getegid(), os.getgroups()
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(gid)
            os.setgroups(groups)

    def revoke(self, name: str) -> bool:
        """Revoke the key and token of a name. Return False if there was none."""
        removed = False
        with self._as_owner():
            for kind in ("clients", "tokens"):
                if name_error("key", name) is None and (self._directory / kind / name).exists():
                    (self._directory / kind / name).unlink()
                    removed = True
        return removed

    def list_keys(self) -> list[KeyInfo]:
        """Return all authorized keys and tokens, sorted by name."""
        found = [KeyInfo(path.name, "key", path.stat().st_mtime) for path in self._files("clients")]
        found += [KeyInfo(path.name, "token", path.stat().st_mtime) for path in self._files("tokens")]
        return sorted(found)

    def _files(self, kind: str) -> Iterator[Path]:
        directory = self._directory / kind
        yield from sorted(directory.iterdir()) if os.access(directory, os.R_OK | os.X_OK) else ()

    def name_for_key(self, public: str) -> str | None:
        """Return the name of a public key, or None if it is not authorized."""
        return next((path.name for path in self._files("clients") if _read_line(path) == public), None)

    def name_for_token(self, token: str) -> str | None:
        """Return the name of a token, compared in constant time, or None."""
        digest, found = _digest(token), None
        for path in self._files("tokens"):
            if hmac.compare_digest(_read_line(path).encode(), digest.encode()):
                found = path.name
        return found

    def file_versions(self, name: str) -> frozenset[object]:
        """Identify the current key and token of a name by their files, to detect revocation and re-issue."""
        found = set()
        for kind in ("clients", "tokens") if name_error("key", name) is None else ():
            try:
                file = os.stat(self._directory / kind / name)
            except OSError:
                continue
            found.add((kind, file.st_ino, file.st_mtime_ns))
        return frozenset(found)

    @property
    def directories(self) -> list[Path]:
        """Directories to watch: one of them changes when an authorization does."""
        return [self._directory.parent, self._directory, self._directory / "clients", self._directory / "tokens"]


def _read_line(path: Path) -> str:
    """Return a file's text, or "" if it was just revoked or is unreadable."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _toml(data: msgspec.Struct) -> bytes:
    """Encode a flat struct of names and Z85 text, which contain neither quotes nor backslashes."""
    pairs = ((field.encode_name, getattr(data, field.name)) for field in msgspec.structs.fields(type(data)))
    return "".join(f"{name} = '{value}'\n" for name, value in pairs).encode()


def _read(path: Path, kind: type[T]) -> T:
    try:
        if path.stat().st_mode & 0o077:
            raise InvalidKey(f"{path}: readable by other users; run chmod 600")
        return msgspec.convert(tomllib.loads(path.read_text()), kind)
    except OSError as error:
        raise InvalidKey(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError):
        raise InvalidKey(f"{path}: not a key file") from None
