"""Operations on files of a session, in parts. The session's sandbox and rights hold, whatever the runtime runs."""

from __future__ import annotations

from typing import ClassVar

from replwire.ops.base import Natural, Part, Positive, SessionRequest, Sha256


class PutFile(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Write a file where the session's own code may write one, or a part of it.

    A relative path counts from the session's working directory. Parts are collected in a hidden file beside it, which
    replaces the file with the `final` part, if its `sha256` is that of the whole file; a file of several parts needs
    one. A part without data that is not `final` changes nothing: its reply says in `offset` how much has arrived.
    """

    changes: ClassVar[bool] = True
    returns: ClassVar[tuple[str, ...]] = ("file", "offset", "bytes", "sha256")

    file: str
    data: Part = b""
    offset: Natural = 0
    final: bool = True
    sha256: Sha256 | None = None


class GetFile(SessionRequest, frozen=True, kw_only=True, rename="kebab"):
    """Read a file that the session's own code may read, or a part of it. For those who may use the session.

    The part that ends at the end of the file (`offset` is `bytes`) has the `sha256` of the whole file.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("file", "data", "offset", "bytes", "sha256")

    file: str
    offset: Natural = 0
    max_bytes: Positive | None = None
