"""Bash: a driver in bash, and on the worker's side a codec, because bash cannot read JSON."""
