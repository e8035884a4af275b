"""What extensions contribute to clients: commands, tools, and parts of `replctl top`. Loaded when first needed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from replctl.client.errors import ReplError
from replctl.tools.base import Answer, Context, Steps
from replctl.tools.base import Tool as BaseTool
from replwire.ext.contracts import Command, Tool
from replwire.ext.registry import OnError, Record, Registry
from replwire.extensions import Extension
from replwire.terminal import escape_lines


def load_all(extensions: Sequence[Extension], on_error: OnError | None = None) -> Registry:
    """What they contribute. One that cannot be loaded is told on stderr, and the others are there: unlike a broker, a
    client guards nothing. What raises later is told to `on_error`, or on stderr too."""
    registry = Registry(on_error or _failed)
    for extension in extensions:
        from replwire.ext.loading import CannotLoad, load  # most have none, and need no pluggy

        try:
            with stdout_is_ours():
                load([extension], registry)
        except CannotLoad as error:
            _say(str(error))
    return registry


@contextmanager
def stdout_is_ours() -> Iterator[None]:
    """What extensions print in the meantime goes to stderr: stdout is for answers, often read by a program."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _say(text: str) -> None:
    print(f"replctl: {escape_lines(text, '  ')}", file=sys.stderr)


def _failed(record: Record, error: BaseException) -> None:
    _say(f"extension {record.label}: {type(error).__name__}: {error}")


def commands(registry: Registry) -> dict[str, Command]:
    """Commands by name."""
    return {record.what.name: record.what for record in registry.of(Command) if isinstance(record.what, Command)}


def run(registry: Registry, name: str, client: Any, session: str, arguments: str) -> str:
    """Do a command. Raises ReplError as the broker does, and `not-supported` for what its code raises."""
    found = registry.find(Command, name)
    assert found is not None, "asked for by the table of commands"
    try:
        return str(found[1].run(client, session, arguments))
    except ReplError:
        raise
    except (Exception, SystemExit) as error:
        raise ReplError("not-supported", f"extension {found[0].label}: {type(error).__name__}: {error}") from error


def tools(registry: Registry) -> list[BaseTool]:
    """Tools as the sets have them; one that raises gives an answer that says so."""
    return [_tool(record, record.what) for record in registry.of(Tool) if isinstance(record.what, Tool)]


def _tool(record: Record, tool: Tool) -> BaseTool:
    def steps(arguments: Any, context: Context) -> Steps:
        try:
            answer = yield from tool.run(arguments, context)
            if not isinstance(answer, Answer):
                raise TypeError(f"gave {type(answer).__name__}, no Answer")
        except ReplError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code, whatever it raises
            _failed(record, error)
            text = f"the tool failed: {type(error).__name__}: {error}"
            return Answer(text=text, facts={"status": "extension-error"}, error=True)
        return answer

    return BaseTool(
        name=tool.name,
        title=tool.title,
        text=tool.text,
        args=tool.args,
        run=steps,
        read_only=tool.read_only,
        destructive=tool.destructive,
        idempotent=tool.idempotent,
        open_world=tool.open_world,
        output={"type": "object"},
    )


def words(arguments: Sequence[str]) -> str:
    """Arguments of a command line as one text, from which `shlex.split` makes them again."""
    return shlex.join(arguments)
