"""Escaping of untrusted text for terminals and logs, without I/O.

Escaped are all characters that `str.isprintable` rejects: C0 and C1 controls, DEL, bidirectional overrides and
isolates, line and paragraph separators, other invisible format characters, lone surrogates. NUL becomes `\\x00`, ESC
`\\x1b`.
"""

from __future__ import annotations


def escape_control(text: str, keep: str = "") -> str:
    """Escape a single line, newlines included, except for the characters of `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def escape_lines(text: str, indent: str = "") -> str:
    """Escape several lines; newlines and tabs stay, and every line but the first is indented by `indent`."""
    lines = text.replace("\r\n", "\n").split("\n")
    return f"\n{indent}".join(escape_control(line, "\t") for line in lines)


def escape_json(text: str) -> str:
    """Escape control characters in JSON text without changing its meaning.

    Encoders leave DEL, C1 and bidirectional controls unescaped; all of them occur inside strings.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
