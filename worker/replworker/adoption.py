"""A worker between two brokers: what it tells the next one, and what it sends that one again."""

from __future__ import annotations

from collections.abc import Callable

from replwire.deadlines import Deadlines
from replwire.link import AdoptBody, AdoptedBody, ExitedBody, FrameKind, Header, ResumeBody, encode
from replworker.checkpoints.session_checkpoints import SessionCheckpoints
from replworker.interpreter import InterpreterBroken
from replworker.link import BrokerLink
from replworker.reply_sender import ReplySender
from replworker.session_network import SessionNetwork
from replworker.session_streams import SessionStreams
from replworker.snapshots import failure_of


class SessionAdoption:
    """Adoption of one session by the next broker. `send_heartbeat` reports the resource use."""

    def __init__(
        self,
        link: BrokerLink,
        replies: ReplySender,
        streams: SessionStreams,
        checkpoints: SessionCheckpoints,
        timers: Deadlines,
        network: SessionNetwork | None,
        send_heartbeat: Callable[[], None],
    ) -> None:
        self._link = link
        self._replies = replies
        self._streams = streams
        self._checkpoints = checkpoints
        self._timers = timers
        self._network = network
        self._send_heartbeat = send_heartbeat
        self._last_eval = 0  # the newest that has reached this worker
        self.exit_cause: str | None = None  # the interpreter's, once that was reported

    def note_request(self, header: Header) -> None:
        """Note that an eval has reached this worker; a request of another kind has number 0."""
        self._last_eval = max(self._last_eval, header.eval)

    def detach(self) -> None:
        """Forget readers, whose requests have ended with the broker; what runs goes on."""
        self._link.detach()
        running = self._streams.evals.running
        if running is not None:
            for waiter in running.waiters:
                self._timers.cancel(waiter.deadline)
            running.waiters.clear()

    def redial(self, session: str) -> None:
        """Connect to the broker that is there now."""
        running = self._streams.evals.running
        self._link.redial(session, self._replies.epoch, self._last_eval, 0 if running is None else running.eval_id)

    def adopt(self, epoch: int, body: AdoptBody) -> None:
        """Send again what the earlier broker may not have counted, and go on.

        Raises:
            InterpreterBroken: the interpreter has failed meanwhile
        """
        broken: InterpreterBroken | None = None
        self._link.attach()
        if not self._checkpoints.awaits_resume:
            self._replies.epoch = epoch
        elif epoch > self._replies.epoch:
            try:
                self._checkpoints.resume(epoch, ResumeBody(report=True))
            except InterpreterBroken as error:
                broken = error
        unknown = body.eval > self._last_eval
        self._replies.send_control(FrameKind.ADOPTED, encode(AdoptedBody(unknown)))
        if body.eval and not unknown:
            self._resend(body.eval, body.route)
        if self._checkpoints.awaits_resume:
            self._checkpoints.send_rolled_back()
        if self.exit_cause is not None:
            self._replies.send_control(FrameKind.INTERPRETER_EXITED, encode(ExitedBody(self.exit_cause)))
        self._send_heartbeat()
        if self._network is not None:
            self._network.resume()
        if broken is not None:
            raise broken

    def _resend(self, eval_id: int, route: int) -> None:
        """Send the result of an eval again, if it has one: it may run, or a rollback may have ended it."""
        record = self._streams.evals.find(eval_id)
        if record is not None:
            if record.outcome is not None:
                self._replies.send_result(record)
        elif not self._checkpoints.requests.resend(eval_id) and (clone := self._streams.evals.dropped) is not None:
            text = "the broker has ended before the copy was used"
            self._replies.send_error(route, clone.request_id, failure_of(clone.op), text)
