"""What a session can run: one folder a runtime, all behind one face."""
