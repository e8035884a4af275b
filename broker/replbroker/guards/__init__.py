"""Hooks that ship with the broker; like other extensions they run only when the settings name them."""
