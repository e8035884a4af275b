"""Extensions: contracts, registry and loading. Authors import from `replctl.ext`."""
