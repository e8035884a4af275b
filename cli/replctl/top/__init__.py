"""`replctl top`: a broker's agents, sessions and evals on one screen, live or as a snapshot.

`model` is fed with events and replies and does no I/O; `tables` turns it into lines. Only the live screen (`app`) needs
textual.
"""
