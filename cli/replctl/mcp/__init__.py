"""The MCP server: tool sets, resources and prompts over stdio or HTTP. Imports the `mcp` package lazily."""
