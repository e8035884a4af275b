"""Project paths that tools read or execute later as their user: protected from sessions, also where they are missing.

The sandbox's default and the paths written by `replctl install` are both derived from this list.
"""

from __future__ import annotations

# Where each MCP client stores the servers of a project, which it starts.
CLIENT_SETTINGS = {
    "claude": ".mcp.json",
    "codex": ".codex/config.toml",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "gemini": ".gemini/settings.json",
    "qwen": ".qwen/settings.json",
}
# Editors, agents and shells that run commands named by a project.
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
# All of a repository except what git has to write: HEAD, index, objects, refs, logs; `info` has the same effect as
# `.gitattributes` and `.gitignore`. The last two determine what `git rebase --continue` runs.
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
