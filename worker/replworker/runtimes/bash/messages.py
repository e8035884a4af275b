"""Messages between the codec and driver.sh. Bash strings cannot contain NUL, so NUL separates fields.

From Bash: `!TAG`, then fields that each start with a dot, then `=`, each terminated by NUL. An empty field first
discards anything before it, which an interrupt may have cut short. Names (`state`) come through a pipe of their own,
which is read when another message has arrived, or through the control channel if they do not fit into that. To Bash: a
token that Bash has just generated and before which it skips everything, then op, argument, name and size, each
terminated by NUL, then a body: `size` bytes of code, or `size` texts terminated by NUL.
"""

from __future__ import annotations

from typing import NamedTuple

from replworker.runtimes.codec import MAX_FRAME_BYTES, ProtocolError

STATE_BYTES = 1024 * 1024  # per list of names; the rest is dropped
_MOST_FIELDS = 64
TAGS = frozenset({"ready", "idle", "begun", "state", "result", "syntax", "need", "answer"})


class BashMessage(NamedTuple):
    """A message from Bash."""

    tag: str
    fields: list[bytes]


class BashMessageReader:
    """Splits Bash's output into messages. Keeps at most MAX_FRAME_BYTES, and STATE_BYTES of names."""

    def __init__(self) -> None:
        self._rest = bytearray()  # an incomplete field
        self._tag: str | None = None
        self._fields: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[BashMessage]:
        """Return the messages completed by `data`.

        Raises:
            ProtocolError: the data is malformed
        """
        messages = []
        pieces = data.split(b"\0")
        for piece in pieces[:-1]:
            self._keep(piece)
            field, self._rest = bytes(self._rest), bytearray()
            message = self._field(field)
            if message is not None:
                messages.append(message)
        self._keep(pieces[-1])
        return messages

    def _keep(self, piece: bytes) -> None:
        if self._tag == "state":
            piece = piece[: max(0, STATE_BYTES - len(self._rest))]
        self._size += len(piece) + 1
        if self._size > 2 * MAX_FRAME_BYTES or len(self._rest) + len(piece) > MAX_FRAME_BYTES:
            raise ProtocolError("sent a message that is too long")
        self._rest += piece

    def _field(self, field: bytes) -> BashMessage | None:
        if field[:1] == b"!":
            self._tag, self._fields, self._size = field[1:].decode("ascii", "replace"), [], 0
            if self._tag not in TAGS:
                raise ProtocolError(f"sent an unknown message: {self._tag[:40]!r}")
        elif not field:
            self._tag, self._fields, self._size = None, [], 0
        elif self._tag is None:
            raise ProtocolError("sent data outside a message")
        elif field[:1] == b".":
            self._fields.append(field[1:])
            if len(self._fields) > _MOST_FIELDS:
                raise ProtocolError("sent a message that is too long")
        elif field == b"=":
            message = BashMessage(self._tag, self._fields)
            self._tag, self._fields, self._size = None, [], 0
            return message
        else:
            raise ProtocolError("sent an invalid field")
        return None


class BashRequest(NamedTuple):
    """A request to Bash: code or texts."""

    op: str
    argument: str = ""
    name: str = ""
    code: bytes = b""
    texts: tuple[bytes, ...] = ()

    def pack(self, token: bytes) -> bytes:
        """Encode the request for a Bash that waits with this token."""
        size = len(self.code) if self.code else len(self.texts)
        head = [b"", token, self.op.encode(), self.argument.encode(), encode_text(self.name), b"%d" % size]
        return b"\0".join(head) + b"\0" + self.code + b"".join(text + b"\0" for text in self.texts)


def encode_text(text: str) -> bytes:
    """Encode text for Bash: without NUL, and with backslash escapes for invalid UTF-8."""
    return text.replace("\0", "").encode("utf-8", "backslashreplace")


def parse_number(field: bytes) -> int:
    """Parse a count or status from Bash.

    Raises:
        ProtocolError: the field is not a number
    """
    if not field.isdigit() or len(field) > 12:
        raise ProtocolError("sent an invalid number")
    return int(field)


def decode_text(field: bytes) -> str:
    """Decode text from Bash; invalid UTF-8 becomes the replacement character."""
    return field.decode("utf-8", "replace")
