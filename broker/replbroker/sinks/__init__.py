"""Records of the broker's activity for operators: audit, transcripts, traces, events and metrics."""
