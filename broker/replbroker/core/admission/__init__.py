"""Request admission: rates, protocol errors, versions."""
