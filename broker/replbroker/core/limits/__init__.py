"""Limits, quotas and rates of the core."""
