"""The broker, which decides who runs when; it never executes, unpickles or imports data of a session."""
