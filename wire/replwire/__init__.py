"""What broker, workers and clients say to each other. Data and rules only: nothing here does I/O."""
