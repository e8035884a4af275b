"""Where workers come from: one face, one file for each kind of place."""
