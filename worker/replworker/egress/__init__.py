"""Egress by list: the proxy that serves sockets inside sessions' network namespaces, and the worker's side of it."""
