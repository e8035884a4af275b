"""Prompts: two workflows that a user can start."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

_DEBUG = """\
Find out why this fails, in the REPL session `{session}`:

{problem}

1. Look first: info(session="{session}"), then the same with what="jobs". Do not reset: the state is evidence.
2. Reproduce it with the smallest code that still fails. Print little.
3. Check one assumption at a time: types, shapes, a value before and after each step. Keep results in names.
4. Before changes that could spoil the state, clone it: sessions(action="clone", session="{session}", to="try").
5. Say the cause in one sentence, show the line that proves it, then the smallest change that fixes it, and run that.
"""

_BENCHMARK = """\
Measure this, in a session of its own (`{session}`), so that nothing else runs in its process:

{code}

1. Set it up once; check that it gives the right answer before its speed is of interest.
2. Warm it up. Then time at least 7 repeats with time.perf_counter_ns, enough calls in each to last 0.1 s.
3. Report the median, the spread and the number of calls; also the memory (info) when it matters. No average alone.
4. Compare alternatives in turns (A, B, A, B), in the same session, and say whether the difference exceeds the spread.
5. Code over a minute: eval(wait=5), then read. Close the session when done.
"""


class _PromptTemplate(NamedTuple):
    """A prompt: its required argument, its default session, and its text."""

    title: str
    description: str
    needed: tuple[str, str]  # name, description
    session: str
    text: str

    def prompt(self, name: str) -> types.Prompt:
        """Return the prompt's description for clients."""
        needed, what = self.needed
        return types.Prompt(
            name=name,
            title=self.title,
            description=self.description,
            arguments=[
                types.PromptArgument(name=needed, description=what, required=True),
                types.PromptArgument(name="session", description=f"Name of the session; else `{self.session}`"),
            ],
        )


_PROMPTS = {
    "debug": _PromptTemplate(
        "Debug in a session",
        "Find a fault without losing the failing state",
        ("problem", "The problem"),
        "default",
        _DEBUG,
    ),
    "benchmark": _PromptTemplate(
        "Benchmark", "Measure code soundly in a session of its own", ("code", "What to measure"), "bench", _BENCHMARK
    ),
}


async def list_prompts(
    _ctx: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
) -> types.ListPromptsResult:
    """List all prompts."""
    return types.ListPromptsResult(prompts=[routine.prompt(name) for name, routine in _PROMPTS.items()])


async def get_prompt(
    _ctx: ServerRequestContext[Any, Any], params: types.GetPromptRequestParams
) -> types.GetPromptResult:
    """Return one prompt with its arguments filled in."""
    routine = _PROMPTS.get(params.name)
    if routine is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    given = {"session": routine.session, **(params.arguments or {})}
    if not given.get(routine.needed[0]):
        raise MCPError(types.INVALID_PARAMS, f"Missing argument: {routine.needed[0]}")
    text = re.sub(r"\{(problem|code|session)\}", lambda match: given[match[1]], routine.text)
    message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.GetPromptResult(description=routine.description, messages=[message])
