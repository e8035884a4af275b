"""Transcripts in other formats: notebook, script, page."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Sequence
from typing import Any

from replctl.transcripts.entries import CODE_OPS, TranscriptEntry, TranscriptPart
from replwire.terminal import escape_control, escape_lines

FORMATS = ("ipynb", "py", "md", "jsonl")
_KERNELS = {
    "python": ("Python 3", "python3", "python"),
    "node": ("JavaScript", "javascript", "javascript"),
    "bash": ("Bash", "bash", "bash"),
}
_NOTE = "Results as of the original run. Opening this file restores no variables."


def notebook(found: Sequence[TranscriptPart], title: str, runtime: str) -> str:
    """Return a Jupyter notebook (format 4.5): a cell per eval, with output, value and error."""
    shown, name, language = _KERNELS.get(runtime, _KERNELS["python"])
    cells = [_markdown("head", f"# {title}\n\n{_NOTE}")]
    for at, each in enumerate(found):
        if not isinstance(each, TranscriptEntry):
            cells.append(_markdown(f"note-{at}", _note(str(each))))
        elif each.op not in CODE_OPS:
            cells.append(_markdown(f"turn-{at}", f"`{each.code}` ({each.status or 'not ended'})"))
        else:
            cells.append(
                {
                    "cell_type": "code",
                    "id": f"eval-{at}",
                    "metadata": {},
                    "source": _source(each.code),
                    "execution_count": each.eval_id or None,
                    "outputs": list(_outputs(each)),
                }
            )
            if each.marks:
                cells.append(_markdown(f"note-{at}", _note(f"{each.eval_id}: {', '.join(each.marks)}")))
    meta = {"kernelspec": {"display_name": shown, "name": name}, "language_info": {"name": language}}
    return json.dumps({"cells": cells, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": _source(text)}


def _note(text: str) -> str:
    return f"*{text[:1].upper()}{escape_control(text[1:])}*"


def _source(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _outputs(turn: TranscriptEntry) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for stream, text in (("stdout", turn.out), ("stderr", turn.err)):
        if text:
            found.append({"output_type": "stream", "name": stream, "text": _source(text)})
    for image in turn.images:
        found.append({"output_type": "display_data", "data": image, "metadata": {}})
    if turn.display_value is not None:
        data = {"text/plain": turn.display_value} | (turn.mime or {})
        found.append(
            {
                "output_type": "execute_result",
                "execution_count": turn.eval_id or None,
                "data": data,
                "metadata": {},
            }
        )
    if turn.status not in ("ok", ""):
        name, _, text = (turn.error or turn.status).partition(": ")
        trace = (turn.traceback or turn.error or turn.status).splitlines()
        found.append({"output_type": "error", "ename": name, "evalue": text, "traceback": trace})
    return found


def script(found: Sequence[TranscriptPart], title: str, runtime: str) -> str:
    """Return a script: each eval a `# %%` cell, results and code that would break the script as comments."""
    sign = "//" if runtime == "node" else "#"
    parts = [_comment(sign, f"{title}\n{_NOTE}")]
    begun = False
    for each in found:
        if not isinstance(each, TranscriptEntry):
            parts.append(_comment(sign, str(each)))
            continue
        head = f"{sign} %% {each.eval_id} ({_describe_end(each)})"
        whole = each.op in CODE_OPS and (runtime != "python" or _is_valid_python(each.code, begun))
        begun = begun or whole
        code = each.code if whole else _comment(sign, each.code)
        came = [f"-> {each.display_value}"] if each.display_value is not None else []
        came += [each.error] if each.error else []
        parts.append("\n".join([head, code.rstrip("\n"), *([_comment(sign, "\n".join(came))] if came else [])]))
    return "\n\n".join(parts) + "\n"


def _is_valid_python(code: str, begun: bool) -> bool:
    """Return True if the code is valid in a script; `from __future__` is valid only at the beginning."""
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about `"\d"` and the like are not relevant here
            tree = ast.parse(code)
            compile(tree, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return not begun or not any(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body)


def _comment(sign: str, text: str) -> str:
    """Return each line as a comment, with control characters escaped: a NUL would end the script."""
    return "\n".join(f"{sign} {escape_control(line)}".rstrip() for line in text.splitlines())


def _describe_end(turn: TranscriptEntry) -> str:
    return ", ".join([*filter(None, [turn.status]), *turn.marks])


def page(found: Sequence[TranscriptPart], title: str, runtime: str) -> str:
    """Return a Markdown page: code, output, value."""
    parts = [f"# {title}", _NOTE]
    for each in found:
        if not isinstance(each, TranscriptEntry):
            parts.append(f"---\n\n{_note(str(each))}")
            continue
        parts.append(f"## {each.eval_id} ({_describe_end(each)})")
        parts.append(_code_block(each.code, runtime if each.op in CODE_OPS else ""))
        text = ""
        for part in (each.out, each.err, each.display_value, each.traceback or each.error):
            text += "\n" if text and part and not text.endswith("\n") else ""
            text += part or ""
        if text.strip():
            parts.append(_code_block(text, "text"))
        rich = [kind for data in (*each.images, each.mime or {}) for kind in data]
        if rich:
            parts.append(_note(f"shown as {', '.join(rich)}: included in a notebook (ipynb)"))
    return "\n\n".join(parts) + "\n"


def _code_block(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{escape_lines(text.rstrip())}\n{fence}"
