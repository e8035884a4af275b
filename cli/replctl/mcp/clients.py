"""Configuration files of MCP clients and the form of their entries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from replctl.mcp.config_edit import into_json, into_toml
from replwire.protected import CLIENT_SETTINGS as PROJECT

Environ = Mapping[str, str]


class ClientConfig(NamedTuple):
    """Configuration of one client. In paths `~` is the home directory; None: the client has no such scope."""

    user: str
    project: str | None
    keys: tuple[str, ...]  # path of the servers in the file
    toml: bool = False
    typed: bool = False  # entries have a type, `stdio`
    base: tuple[str, str] | None = None  # variable that replaces a directory of the user's path
    more: Mapping[str, Any] = {}

    def path(self, scope: str, environ: Environ, directory: str) -> str | None:
        """Return the file for a scope, in this project directory, or None."""
        if scope == "project":
            return None if self.project is None else os.path.join(directory, self.project)
        if self.base is not None and (moved := environ.get(self.base[0])):
            return os.path.join(moved, os.path.relpath(self.user, self.base[1]))
        return self.user.replace("~", environ.get("HOME", "/"), 1)

    def entry(self, command: list[str]) -> dict[str, Any]:
        """Return the entry under the server's name."""
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": command[0], "args": command[1:], **self.more}

    def edit(self, text: str, name: str, entry: Mapping[str, Any]) -> str:
        """Return the file's text with the entry in it. Raises CannotEdit."""
        if self.toml:
            return into_toml(text, ".".join(self.keys), name, entry)
        return into_json(text, self.keys, name, entry)


# Codex passes few variables to a server, and waits a minute for a tool.
_CODEX = {
    "env_vars": ["XDG_RUNTIME_DIR", "REPLCTL_STATE_DIR", "REPLCTL_ENDPOINT", "REPLCTL_CONFIG"],
    "startup_timeout_sec": 20,
    "tool_timeout_sec": 300,
}

CLIENTS: dict[str, ClientConfig] = {
    "claude": ClientConfig(
        "~/.claude.json", PROJECT["claude"], ("mcpServers",), typed=True, base=("CLAUDE_CONFIG_DIR", "~")
    ),
    "codex": ClientConfig(
        "~/.codex/config.toml",
        PROJECT["codex"],
        ("mcp_servers",),
        toml=True,
        base=("CODEX_HOME", "~/.codex"),
        more=_CODEX,
    ),
    "cursor": ClientConfig("~/.cursor/mcp.json", PROJECT["cursor"], ("mcpServers",)),
    "vscode": ClientConfig("~/.config/Code/User/mcp.json", PROJECT["vscode"], ("servers",), typed=True),
    "gemini": ClientConfig("~/.gemini/settings.json", PROJECT["gemini"], ("mcpServers",)),
    "qwen": ClientConfig("~/.qwen/settings.json", PROJECT["qwen"], ("mcpServers",)),
    "windsurf": ClientConfig("~/.codeium/windsurf/mcp_config.json", None, ("mcpServers",)),
}
