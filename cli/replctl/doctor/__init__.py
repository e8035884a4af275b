"""Checks of `replctl doctor`. Each check takes facts and returns findings; none starts a broker or changes anything."""
