"""Measurements of replctl beside its floor and its peers, in one run on one machine."""
