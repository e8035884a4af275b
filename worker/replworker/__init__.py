"""Worker process: keeps one session, trusted and always responsive, whatever the user's code does."""
