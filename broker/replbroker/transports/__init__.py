"""Transports, which carry messages between clients, workers and the core."""
