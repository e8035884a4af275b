"""The time between two brokers: a worker looks for the next one at the endpoint, but not for ever."""

from __future__ import annotations

import select
import time

from replwire.deadlines import Deadline, Deadlines
from replworker.lease import KernelLease
from replworker.link import BrokerLink
from replworker.session import WorkerSession

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.3  # between two attempts
_LEASE_MARGIN_S = 10.0  # after the moment at which the worker should have ended by itself


class Reconnection:
    """Watches the link, and attempts to find the next broker.

    Attributes:
        is_over: no broker has come in time

    Args:
        link: the link
        session: the session, which goes on meanwhile
        timers: the worker's timers
        ttl_s: seconds until the session ends; 0: it ends with its broker
    """

    def __init__(self, link: BrokerLink, session: WorkerSession, timers: Deadlines, ttl_s: float) -> None:
        self._link = link
        self._session = session
        self._timers = timers
        self._ttl_s = ttl_s
        self._epoll = select.epoll()  # its descriptor stays the same when the link's does not
        self._epoll.register(link.monitor_fd, select.EPOLLIN)
        self._lease: KernelLease | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._expiry: Deadline | None = None  # set while no broker has this worker
        self.is_over = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when `handle_ready` has work."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close the descriptor, and give the lease back: other sessions of the process go on."""
        self._epoll.close()
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def handle_ready(self) -> bool:
        """Look for the next broker if the link has broken. Return False if the session is to end now."""
        return not self._link.is_disconnected() or self._on_disconnected()

    def _on_disconnected(self) -> bool:
        self._epoll.unregister(self._link.monitor_fd)
        if self._expiry is None:
            if not self._session.is_assigned or self._ttl_s <= 0 or not self._take_lease():
                return False
            self._session.detach()
            self._pause_s = _FIRST_PAUSE_S
            self._expiry = self._timers.call_at(time.monotonic() + self._ttl_s, self._expire)
        self._schedule_redial()
        return True

    def _take_lease(self) -> bool:
        """Have the kernel end this worker even if it hangs. Without a lease it might stay for ever."""
        try:
            self._lease = self._lease or KernelLease()
            self._lease.renew(self._ttl_s + min(self._ttl_s, _LEASE_MARGIN_S))
        except OSError:
            return False
        return True

    def _expire(self, _: float) -> None:
        self.is_over = True

    def _schedule_redial(self) -> None:
        self._timers.call_at(time.monotonic() + self._pause_s, self._redial)
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def _redial(self, _: float) -> None:
        if not self._link.may_redial():
            self._schedule_redial()
            return
        self._session.redial()
        self._epoll.register(self._link.monitor_fd, select.EPOLLIN)
        if self._link.is_disconnected():  # a descriptor of libzmq signals nothing before the first look
            self._on_disconnected()

    def on_frame(self) -> None:
        """Note that a frame was handled, which may have been the one with which a broker adopts this worker."""
        if self._expiry is not None and self._link.is_attached:
            self._timers.cancel(self._expiry)
            self._expiry = None
            assert self._lease is not None
            self._lease.renew(0)
