"""Client operation that finds out what became of an eval, shared by both clients."""

from __future__ import annotations

from replctl.client.base import ReplyT, ResultT
from replctl.client.file_operations import FileOperations
from replctl.client.request_fields import milliseconds


class OutcomeOperations(FileOperations[ReplyT, ResultT]):
    """The question after a lost connection. It raises ReplError if the broker refuses."""

    def find_eval(self, idempotency_key: str, instance: str | None = None, age: float | None = None) -> ReplyT:
        """Find out after a lost connection whether an eval ran, without running it.

        Args:
            idempotency_key: The key that the eval was sent with.
            instance: The broker that it was sent to, as `describe` named it before.
            age: Seconds since it was sent.

        Returns:
            A reply whose `outcome` is `ran`, `did-not-run` or `unknown`; if it ran with `session` and `eval_id` for
            `read`. After `did-not-run` the same key may be sent again: the code runs once in any case.
        """
        fields = {"instance": instance, "age_ms": milliseconds(age)}
        return self.request("find-eval", idempotency_key=idempotency_key, **fields)
