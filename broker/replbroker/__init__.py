"""The process that decides who runs when. It never runs, unpickles or imports what came from a session."""
