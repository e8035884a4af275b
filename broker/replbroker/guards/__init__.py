"""Hooks that come along, as extensions like any other: a config names them to have them."""
