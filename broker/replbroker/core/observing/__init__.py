"""Events, metrics and the audit trail."""
