"""Agent Client Protocol adapter between an editor's stdio and a broker's sessions.

`rpc` and `stdio` move messages, `server` dispatches methods, `turns` runs one prompt, `store` persists sessions across
restarts. Sessions, queues and limits belong to the broker; no code runs in this process.
"""
