"""Pages, the generator of their tables, and a demonstration that runs."""
