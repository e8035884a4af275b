"""Connections, identities, waiting and disconnected clients."""
