"""Launchers, which start and kill worker processes, and what workers need of the machine."""
