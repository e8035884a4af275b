"""Text of others made safe for a terminal or a log: control characters are shown as escapes, not obeyed. No I/O.

Escaped is all that `str.isprintable` does not pass: C0 and C1 controls, DEL, bidirectional overrides and isolates,
line and paragraph separators, other invisible format characters, lone surrogates. NUL becomes `\\x00`, ESC `\\x1b`.
"""

from __future__ import annotations


def escape_control(text: str, keep: str = "") -> str:
    """One line: everything is escaped, newlines too, but for the characters of `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def escape_lines(text: str, indent: str = "") -> str:
    """Several lines: newlines and tabs stay, and every line but the first begins with `indent`."""
    lines = text.replace("\r\n", "\n").split("\n")
    return f"\n{indent}".join(escape_control(line, "\t") for line in lines)


def escape_json(text: str) -> str:
    """JSON text that means the same and holds no character a terminal obeys. Encoders leave DEL, C1 and bidirectional
    controls as they are; all of them stand in strings."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
