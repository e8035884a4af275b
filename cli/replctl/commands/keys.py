"""`replctl keys`: keys and tokens of remote clients. Secrets go into files of mode 0600, never to the terminal."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import click

from replctl.commands.output import CommandOutput
from replwire.keys import ClientKey, InvalidKey, KeyPair, KeyStore, write_secret
from replwire.paths import state_dir

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")


@click.group()
def keys() -> None:
    """Manage keys and tokens for remote clients.

    A ZeroMQ client over tcp:// authenticates with a key (CURVE, encrypted), a JSON-lines client over TCP with a token
    (not encrypted: for loopback or a tunnel). A running broker picks up changes within seconds.
    """


@keys.command()
@click.argument("name")
@click.option("--out", type=click.Path(), help="File to write the client's key to. [NAME.key]")
@_json
def new(name: str, out: str | None, as_json: bool) -> None:
    """Create and authorize a key for the client NAME, and write its key file, for the client's REPLCTL_KEY_FILE."""
    directory = _key_store()
    path = Path(out or f"{name}.key").absolute()
    server = directory.server() or _new_server(directory)
    pair = _new_pair()
    key = ClientKey(name, server.public, pair.public, pair.secret)
    _issue(path, lambda: write_secret(path, key), lambda: _apply(directory.allow, name, pair.public))
    _show(as_json, {"name": name, "public": pair.public, "file": str(path)}, str(path))


@keys.command()
@click.argument("name")
@click.argument("public")
@_json
def allow(name: str, public: str, as_json: bool) -> None:
    """Authorize a client's existing public key: NAME and PUBLIC, in Z85. Prints the broker's public key."""
    directory = _key_store()
    server = directory.server() or _new_server(directory)
    _apply(directory.allow, name, public)
    _show(as_json, {"name": name, "public": public, "server": server.public}, server.public)


@keys.command()
@click.argument("name")
@click.option("--out", type=click.Path(), help="File to write the token to. [NAME.token]")
@_json
def token(name: str, out: str | None, as_json: bool) -> None:
    """Create a token for the JSON-lines client NAME, who sends {"op": "hello", "token": …} first."""
    path = Path(out or f"{name}.token").absolute()
    text = secrets.token_urlsafe(32)
    _issue(path, lambda: _write(path, text + "\n"), lambda: _apply(_key_store().add_token, name, text))
    _show(as_json, {"name": name, "file": str(path)}, str(path))


def _issue(path: Path, write: Callable[[], None], let_in: Callable[[], None]) -> None:
    """Write a client's file and authorize the client: both, or neither."""
    try:
        write()
    except FileExistsError:
        raise click.ClickException(f"{path} already exists") from None
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
    try:
        let_in()
    except BaseException:
        path.unlink()
        raise


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(text)


@keys.command("list")
@_json
def list_(as_json: bool) -> None:
    """List authorized keys and tokens."""
    known = _key_store().list_keys()
    screen = CommandOutput()
    if as_json:
        rows = [{"name": each.name, "kind": each.kind, "since": each.since} for each in known]
        screen.json({"status": ["done"], "keys": rows})
    elif known:
        rows_ = ((each.name, each.kind, time.strftime("%Y-%m-%d", time.localtime(each.since))) for each in known)
        screen.table(("NAME", "KIND", "SINCE"), rows_)
    else:
        screen.notice("no keys: only this user and root can reach the broker")


@keys.command()
@click.argument("name")
@_json
def revoke(name: str, as_json: bool) -> None:
    """Revoke the key and the token of NAME. Connected clients are refused within seconds."""
    if not _key_store().revoke(name):
        raise click.ClickException(f"no key or token named {name}")
    _show(as_json, {"name": name}, f"revoked {name}")


def _key_store() -> KeyStore:
    return KeyStore(state_dir(os.environ))


def _apply(act: Callable[[str, str], None], name: str, text: str) -> None:
    try:
        act(name, text)
    except InvalidKey as error:
        raise click.ClickException(str(error)) from None


def _new_pair() -> KeyPair:
    import zmq

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def _new_server(directory: KeyStore) -> KeyPair:
    pair = _new_pair()
    directory.set_server(pair)
    return pair


def _show(as_json: bool, data: dict[str, object], line: str) -> None:
    screen = CommandOutput()
    if as_json:
        screen.json({"status": ["done"], **data})
    else:
        screen.line(line)
