"""`replctl top`: a broker's agents, sessions and evals on one screen, live or as a snapshot.

`model` is fed with events and answers and knows nothing of sockets or screens; `tables` makes lines of it. The live
screen (`app`) alone needs textual.
"""
