"""Prompts: two routines that a person may start."""

from __future__ import annotations

import re
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

_DEBUG = """\
Find out why this goes wrong, in the REPL session `{session}`:

{problem}

1. Look first: info(session="{session}"), then the same with what="jobs". Do not reset: the state is evidence.
2. Reproduce it with the smallest code that still fails. Print little.
3. Check one assumption at a time: types, shapes, a value before and after each step. Keep results in names.
4. Before changes that could spoil the state, clone it: sessions(action="clone", session="{session}", to="try").
5. Say the cause in one sentence, show the line that proves it, then the smallest change that mends it, and run that.
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

_PROMPTS = {
    "debug": (
        types.Prompt(
            name="debug", title="Debug in a session", description="Find a fault without losing the state that shows it",
            arguments=[
                types.PromptArgument(name="problem", description="What goes wrong", required=True),
                types.PromptArgument(name="session", description="Where; else `default`"),
            ],
        ),
        _DEBUG, {"session": "default"},
    ),
    "benchmark": (
        types.Prompt(
            name="benchmark", title="Benchmark", description="Measure code soundly in a session of its own",
            arguments=[
                types.PromptArgument(name="code", description="What to measure", required=True),
                types.PromptArgument(name="session", description="Name of the session; else `bench`"),
            ],
        ),
        _BENCHMARK, {"session": "bench"},
    ),
}  # fmt: skip


async def listed(
    _ctx: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
) -> types.ListPromptsResult:
    """All prompts."""
    return types.ListPromptsResult(prompts=[prompt for prompt, _, _ in _PROMPTS.values()])


async def get(_ctx: ServerRequestContext[Any, Any], params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """One prompt with its arguments filled in."""
    if params.name not in _PROMPTS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    prompt, text, defaults = _PROMPTS[params.name]
    given = {**defaults, **(params.arguments or {})}
    missing = [each.name for each in prompt.arguments or [] if each.required and not given.get(each.name)]
    if missing:
        raise MCPError(types.INVALID_PARAMS, f"Missing argument: {', '.join(missing)}")
    text = re.sub(r"\{(problem|code|session)\}", lambda match: given[match[1]], text)
    message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.GetPromptResult(description=prompt.description, messages=[message])
