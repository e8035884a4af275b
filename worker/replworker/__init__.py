"""The process that keeps one session: small, trusted, always responsive, whatever the user's code does."""
