"""Transcripts of this user's sessions, including closed ones: code and results.

Nothing in this package talks to a broker or restores variables.
"""
