"""Keys and tokens of clients that come from elsewhere: the files, and nothing of cryptography.

The broker's folder `keys` has `server.toml` (its key pair), `clients/NAME` (public keys that may come) and
`tokens/NAME` (digests of tokens). A client has one file with all it needs; what is secret stands in files of mode
0600 and nowhere else.
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
    """A key or token that cannot be used; the text says why, without the secret."""


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair in Z85."""

    public: str
    secret: str


class ClientKey(msgspec.Struct, frozen=True):
    """A client's file: who it is, its pair, and whom it speaks to."""

    name: str
    server: str
    public: str
    secret: str


class KeyInfo(NamedTuple):
    """One line of `keys list`."""

    name: str
    kind: str  # `key` or `token`
    since: float  # Unix time


def read_client_key(path: str) -> ClientKey:
    """A client's file. Raises KeyFault."""
    return _read(Path(path), ClientKey)


def write_secret(path: Path, data: msgspec.Struct) -> None:
    """Write a new file of mode 0600. Raises FileExistsError: a key is never written over."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(_toml(data))


class KeyStore:
    """The broker's folder."""

    def __init__(self, state_dir: str) -> None:
        self._folder = Path(state_dir) / "keys"

    def server(self) -> KeyPair | None:
        """The broker's own pair, or None when it has none yet. Raises KeyFault."""
        path = self._folder / "server.toml"
        return _read(path, KeyPair) if path.exists() else None

    def set_server(self, pair: KeyPair) -> None:
        """Keep it."""
        with self._as_owner():
            self._make_directory("")
            write_secret(self._folder / "server.toml", pair)

    def allow(self, name: str, public: str) -> None:
        """Let a public key in under this name. Raises KeyFault when either cannot be used, or the name is taken."""
        if len(public) != _Z85_CHARS or not public.isascii() or not public.isprintable():
            raise InvalidKey("not a public key: 40 characters of Z85")
        self._store("clients", name, public)

    def add_token(self, name: str, token: str) -> None:
        """Let a token in under this name; only its digest is kept."""
        self._store("tokens", name, _digest(token))

    def _store(self, kind: str, name: str, text: str) -> None:
        if (why := name_error("key", name)) is not None:
            raise InvalidKey(why)
        with self._as_owner():
            folder = self._make_directory(kind)
            try:
                fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                raise InvalidKey(f"there is a {kind.removesuffix('s')} of the name {name}: revoke it first") from None
            with open(fd, "w") as file:
                file.write(text)

    def _make_directory(self, kind: str) -> Path:
        """One of our folders, and those above it that are the broker's, which nobody else may enter."""
        make_private_directory(self._folder / kind)
        return self._folder / kind

    @contextmanager
    def _as_owner(self) -> Iterator[None]:
        """Root does as the user of the state folder, who has to read what is made there, and whose links may lead
        anywhere."""
        state = self._folder.parent
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
        """Take back what goes by this name; False when there was nothing."""
        gone = False
        with self._as_owner():
            for kind in ("clients", "tokens"):
                if name_error("key", name) is None and (self._folder / kind / name).exists():
                    (self._folder / kind / name).unlink()
                    gone = True
        return gone

    def list_keys(self) -> list[KeyInfo]:
        """Everything that may come in, by name."""
        found = [KeyInfo(path.name, "key", path.stat().st_mtime) for path in self._files("clients")]
        found += [KeyInfo(path.name, "token", path.stat().st_mtime) for path in self._files("tokens")]
        return sorted(found)

    def _files(self, kind: str) -> Iterator[Path]:
        folder = self._folder / kind
        yield from sorted(folder.iterdir()) if os.access(folder, os.R_OK | os.X_OK) else ()

    def name_for_key(self, public: str) -> str | None:
        """Whose public key this is, or None: it may not come in."""
        return next((path.name for path in self._files("clients") if _read_line(path) == public), None)

    def name_for_token(self, token: str) -> str | None:
        """Whose token this is, compared in constant time, or None."""
        digest, found = _digest(token), None
        for path in self._files("tokens"):
            if hmac.compare_digest(_read_line(path).encode(), digest.encode()):
                found = path.name
        return found

    def file_versions(self, name: str) -> frozenset[object]:
        """The key and the token of this name, told by their files: others once they were taken back and given anew."""
        found = set()
        for kind in ("clients", "tokens") if name_error("key", name) is None else ():
            try:
                file = os.stat(self._folder / kind / name)
            except OSError:
                continue
            found.add((kind, file.st_ino, file.st_mtime_ns))
        return frozenset(found)

    @property
    def directories(self) -> list[Path]:
        """Where what may come in is kept: something changes in one of these when that does."""
        return [self._folder.parent, self._folder, self._folder / "clients", self._folder / "tokens"]


def _read_line(path: Path) -> str:
    """What a file says; nothing when it was just revoked, or is not ours to read."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _toml(data: msgspec.Struct) -> bytes:
    """Flat structs of plain text: names and Z85, which has neither quotes nor backslashes in it."""
    pairs = ((field.encode_name, getattr(data, field.name)) for field in msgspec.structs.fields(type(data)))
    return "".join(f"{name} = '{value}'\n" for name, value in pairs).encode()


def _read(path: Path, kind: type[T]) -> T:
    try:
        if path.stat().st_mode & 0o077:
            raise InvalidKey(f"{path}: others may read it; chmod 600 it")
        return msgspec.convert(tomllib.loads(path.read_text()), kind)
    except OSError as error:
        raise InvalidKey(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError):
        raise InvalidKey(f"{path}: not a key file") from None
