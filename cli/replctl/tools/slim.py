"""The slim set: three tools for models that need no more. Its `eval` also follows, answers and interrupts code."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from replctl.tools import default
from replctl.tools.base import FollowUps, ToolCall, ToolContext, ToolDefinition
from replctl.tools.steps import answer_input, read_eval
from replwire.identifiers import DEFAULT_SESSION


class SlimEvalArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `eval`."""

    code: str | None = None
    session: str = DEFAULT_SESSION
    runtime: Annotated[
        str | None, Meta(description="of a new session: python (default), node, bash or a Python environment")
    ] = None
    timeout: Annotated[default.Seconds | None, Meta(description="seconds, then interrupted; default 1 h")] = None
    wait: Annotated[default.Seconds | None, Meta(description="seconds until `running`; default 45")] = None
    interrupt: Annotated[bool, Meta(description="stop what runs; then run the code, if any")] = False
    eval_id: Annotated[default.Natural | None, Meta(description="no code: wait for this eval, read its output")] = None
    offset: Annotated[default.Natural | None, Meta(description="with eval_id: byte; a page of 4000")] = None
    grep: Annotated[str | None, Meta(description="with eval_id: fixed text; lines with it")] = None
    input: Annotated[str | None, Meta(description="no code: a line for code that waits in input()")] = None


def eval_(a: SlimEvalArgs, at: ToolContext) -> ToolCall:
    """Run, follow, answer or interrupt code."""
    if a.input is not None:
        return (yield from answer_input(at, a.session, a.input))
    if a.code is None and a.eval_id is not None:
        wait = at.settings.wait if a.wait is None else a.wait
        return (yield from read_eval(at, a.session, a.eval_id, wait, a.offset, a.grep))
    if a.code is None and a.interrupt:
        return (yield from default.interrupt(default.InterruptArgs(a.session, all=True), at))
    wanted = default.EvalArgs(
        a.code, session=a.session, runtime=a.runtime, timeout=a.timeout, wait=a.wait, interrupt=a.interrupt
    )
    return (yield from default.eval_(wanted, at))


_KEPT = {tool.name: tool for tool in default.TOOLS}
CALLS = FollowUps(read="eval", stdin="eval", answer="input")
TOOLS = (
    ToolDefinition(
        name="eval",
        title="Run code",
        args=SlimEvalArgs,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_KEPT["eval"].output,
        text="Run code in a persistent REPL session, opened if new: a process of its own whose variables and imports "
        "stay. Gives the last expression's value, then output, images, or the error. Code that takes longer than "
        "`wait` runs on; call again with its eval_id.",
    ),
    _KEPT["info"],
    _KEPT["reset"],
)
INSTRUCTIONS = default.INSTRUCTIONS.replace("read() pages", "eval(eval_id=…) pages")
