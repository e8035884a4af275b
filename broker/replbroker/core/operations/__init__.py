"""Handlers of the operations."""
