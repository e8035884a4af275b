"""Bash runtime: a driver in Bash, and a codec in the worker, because Bash cannot parse JSON."""
