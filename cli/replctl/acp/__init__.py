"""The Agent Client Protocol's side of replctl: an adapter between an editor's stdio and a broker's sessions.

`rpc` and `stdio` move messages, `server` knows the methods, `turns` runs one prompt, `records` is what survives a
restart. Sessions, queues and limits are the broker's; nothing here runs code.
"""
