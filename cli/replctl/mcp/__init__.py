"""The MCP server: tool sets, resources and prompts over stdio or HTTP. Needs the `mcp` package, and loads it late."""
