"""Paths of a project that tools obey or run later as their user: what no session may write, nor make where it misses.

The one list: the sandbox's default, and where `replctl install` writes, are made from it.
"""

from __future__ import annotations

# Where each MCP client keeps a project's servers, which it starts.
CLIENT_SETTINGS = {
    "claude": ".mcp.json",
    "codex": ".codex/config.toml",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "gemini": ".gemini/settings.json",
    "qwen": ".qwen/settings.json",
}
# Editors, agents and shells that run commands which a project names.
_TOOLS = (
    ".agents",
    ".claude",
    ".devcontainer",
    ".devcontainer.json",
    ".envrc",
    ".husky",
    ".idea",
    ".windsurf",
    ".zed",
)
# Of a repository all but what working needs: HEAD, index, objects, refs, logs and what git writes beside them; `info`
# says no more than `.gitattributes` and `.gitignore`. The last two say what `git rebase --continue` runs.
_GIT = (
    "hooks",
    "config",
    "config.worktree",
    "commondir",
    "modules",
    "worktrees",
    "branches",
    "remotes",
    "rebase-merge",
    "rebase-apply",
)

PROTECTED = tuple(
    dict.fromkeys(
        (
            *(f".git/{name}" for name in _GIT),
            *_TOOLS,
            *(path.partition("/")[0] for path in CLIENT_SETTINGS.values()),
        )
    )
)
