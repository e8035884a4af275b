"""Protocol shared by broker, workers and clients: data and rules only, no I/O."""
