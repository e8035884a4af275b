"""Sessions, names, access and transitions."""
