"""The broker without sockets, clock or processes: a message or a moment in, a list of effects out."""
