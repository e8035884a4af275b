"""Extensions: what they may contribute, who has, and how they are found. Authors import from `replwire.ext.api`."""
