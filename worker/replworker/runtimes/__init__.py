"""Runtimes of sessions, one directory each, behind one interface."""
