"""How bytes come to the core and leave it."""
