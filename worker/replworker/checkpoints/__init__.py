"""Checkpoints of a session: copies of its interpreter that wait, and the way back to one of them."""
