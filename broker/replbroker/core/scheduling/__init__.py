"""Worker pool, eval scheduling and fairness."""
