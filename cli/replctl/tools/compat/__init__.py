"""Tool sets compatible with other servers: REPLy, AgentREPL, nexo."""
