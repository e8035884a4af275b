"""Operations about sessions: open, list, share, transfer, change environment, reset, close."""

from __future__ import annotations

from replbroker.core.effects import Peer, WorkerSpec
from replbroker.core.limits.quotas import SESSIONS, Holder
from replbroker.core.operations import views
from replbroker.core.operations.package_ops import PackageOps
from replbroker.core.operations.session_factory import SessionFactory, check_fields, check_path, environment_spec
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.eval_task import ReadyWaiter
from replbroker.core.sessions.session import CLOSED, Session
from replbroker.core.sessions.session_registry import NameKey
from replbroker.core.sessions.snapshot_uploads import SnapshotUpload
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.identifiers import name_error
from replwire.identities import Principal

_MAX_SHARES = 100


class SessionOps:
    """Each method takes the typed request, its sender, its bytes and the moment."""

    def __init__(
        self, state: BrokerState, scheduler: EvalScheduler, factory: SessionFactory, packages: PackageOps
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._factory = factory
        self._packages = packages

    def new_session(self, request: wire.NewSession, peer: Peer, _: bytes, now: float) -> None:
        """Open a session, or return the one of this name. The reply is sent when it has its worker."""
        state = self._state
        check_fields(state, peer, request)  # for an existing session too: its caller takes it for one as asked
        if request.trusted:
            err = "trusted sessions share the server's own namespace; here each is isolated"
            raise RequestError("not-supported", err)
        if request.name is not None:
            if request.snapshot is not None and request.if_exists == "reuse":
                raise RequestError("invalid-request", "a session that exists cannot begin with a snapshot")
            existing = state.lookup.find(request, peer, request.name) if request.if_exists == "reuse" else None
            if existing is not None:
                self._reuse(existing, request, peer)
                return
            self._check_new(request.name, request, peer)
        upload = self._find_upload(request, peer)
        saved = None if upload is None else upload.header.runtime
        spec = self._factory.worker_spec(request.runtime or saved, peer)
        if saved not in (None, spec.runtime):
            err = f"a {saved} session was saved, and cannot go on in {spec.runtime}"
            raise RequestError("snapshot-failed", err)
        session = self._factory.create(request.name, spec, request, peer, now, request.cwd, request.env)
        state.greetings.is_first(peer)
        waiter = ReadyWaiter(peer, request.id, created=True, cause=session.lost_cause)
        if upload is not None:
            state.uploads.release(upload)
            session.snapshot, waiter.snapshot = upload.source(), upload.describe()
            state.emitter.emit_session_restored(session, upload.header)
        session.waiters.append(waiter)
        session.lost_cause = None  # the reply to this request reports it
        self._scheduler.pool.acquire(session, now)

    def _find_upload(self, request: wire.NewSession, peer: Peer) -> SnapshotUpload | None:
        """Return the snapshot that a new session begins with, if its request names one. Raises RequestError."""
        if request.snapshot is None:
            return None
        upload = self._state.uploads.find(peer, request.snapshot)
        if upload is None or not upload.is_complete:
            raise RequestError("snapshot-not-found", "this connection has not sent such a snapshot whole")
        return upload

    def _reuse(self, session: Session, request: wire.NewSession, peer: Peer) -> None:
        state = self._state
        state.access.check(session, peer, changes=True)
        directory_notice = state.greetings.directory_notice(peer, session, request.cwd)
        notices = filter(None, (directory_notice, *self._factory.find_mismatches(session, request)))
        state.greetings.is_first(peer)
        state.reply(
            peer,
            request.id,
            status=["done"],
            session=session.id,
            name=session.name,
            epoch=session.epoch,
            created=False,
            cwd=session.directory,
            notice="; ".join(notices) or None,
        )

    def _check_new(self, name: str, request: wire.NewSession, peer: Peer) -> None:
        """Raise RequestError for a text that cannot be the name of a new session."""
        if (why := name_error("session", name)) is not None:
            raise RequestError("invalid-request", f'new-session "name": {why}')
        key = self._state.lookup.key(name, request, self._state.access.identity_of(peer))
        if self._state.sessions.find_by_name(key) is not None:
            hint = "send `if-exists`: `reuse` to use the existing session"
            raise RequestError("session-already-exists", f"Session already exists: {name}", hint=hint)

    # --- environments ---

    def env(self, request: wire.Env, peer: Peer, body: bytes, now: float) -> None:
        """Show or change the Python environment of a session, or its packages."""
        session = self._state.lookup.get(request, peer)
        if request.path is not None:
            check_path("path", request.path)
        if request.action not in ("activate", "deactivate", "show"):
            self._packages.submit(session, request, peer, body, now)
            return
        if session.spec.runtime != "python":
            raise RequestError("not-supported", f"a {session.spec.runtime} session has no python environment")
        if request.action in ("activate", "deactivate"):
            self._switch_environment(session, request, peer, now)
        else:
            self._state.reply(
                peer,
                request.id,
                status=["done"],
                session=session.id,
                name=session.name,
                epoch=session.epoch,
                environment=session.spec.environment,
                executable=session.executable,
            )

    def _switch_environment(self, session: Session, request: wire.Env, peer: Peer, now: float) -> None:
        if request.action == "activate" and request.path is None:
            raise RequestError("invalid-request", "env activate requires path")
        if session.ephemeral:
            raise RequestError("invalid-request", "an ephemeral session cannot change its environment")
        if session.is_in_use:
            raise self._in_use_error(session, peer)
        spec = WorkerSpec("python")
        if request.action == "activate":
            spec = environment_spec(self._state, request.path or "", peer)
        self._scheduler.switch.begin(session, spec, peer, request.id, now)

    # --- rights ---

    def set_mode(self, request: wire.SetMode, peer: Peer, _: bytes, now: float) -> None:
        """Set the mode of a session."""
        session = self._state.lookup.get(request, peer)
        self._state.access.check(session, peer, changes=True)  # a reader cannot lock its writers out
        if request.to != session.mode:
            session.mode, session.mode_since, session.mode_reason = request.to, now, request.reason
            self._state.changes.touch_session(session)
        self._state.reply(
            peer, request.id, status=["done"], session=session.id, name=session.name, session_mode=session.mode
        )

    def share(self, request: wire.Share, peer: Peer, _: bytes, now: float) -> None:
        """Share a session with an identity, or end that."""
        session = self._state.lookup.get(request, peer)
        self._state.access.check_owner(session, peer)
        family = self._scheduler.pool.family(session)  # a branch reaches the files and processes of its source
        others = session.shares.keys() - {request.who}
        if request.level != "none" and len(others) >= _MAX_SHARES:
            raise RequestError("invalid-request", f"a session is shared with at most {_MAX_SHARES}")
        for each in family:
            each.shares.pop(request.who, None)
            if request.level != "none":
                each.shares[request.who] = request.level
            self._state.changes.touch_session(each)
            self._end_hidden(each, now)
        self._state.reply(
            peer, request.id, status=["done"], session=session.id, name=session.name, shares=session.shares
        )

    def transfer(self, request: wire.Transfer, peer: Peer, _: bytes, now: float) -> None:
        """Offer a session to another identity, or accept one: nobody gets a session without having agreed."""
        session, access = self._state.lookup.get(request, peer), self._state.access
        accepts = access.identity_of(peer) == request.who == session.offered_to
        if not accepts:
            access.check_owner(session, peer)
        self._check_no_branches(session)
        if session.hibernated is not None:
            err = f"session {session.label} is hibernated: its variables would come back with the rights of another"
            raise RequestError("not-supported", err, hint="run an eval in it first")
        if accepts or access.is_admin(peer):
            to = access.principal_of(peer) if accepts else Principal(identity=request.who)
            self._change_owner(session, peer, to)
        else:
            session.offered_to = request.who if request.who != session.owner else None
            self._state.changes.touch_session(session)
        self._end_hidden(session, now)
        self._state.reply(
            peer,
            request.id,
            status=["done"],
            session=session.id,
            name=session.name,
            owner=session.owner,
            offered_to=session.offered_to,
            notice=self._environment_notice(session),
        )

    def _check_no_branches(self, session: Session) -> None:
        """Raise RequestError for a session that shares its sandbox with others."""
        names = ", ".join(each.label for each in self._scheduler.pool.family(session) if each is not session)
        if names:
            hint = "close or reset them first: a session that is reset has a sandbox of its own"
            raise RequestError("busy", f"session {session.label} shares its sandbox with {names}", hint=hint)

    def _change_owner(self, session: Session, peer: Peer, to: Principal) -> None:
        """Give a session another owner, who decides anew about shares. Raises RequestError if the name is taken."""
        state, before = self._state, NameKey(session.owner, session.label, session.scope)
        after = before._replace(owner=to.identity)
        if after != before:
            if state.sessions.find_by_name(after) is not None:
                err = f"Session already exists: {to.identity} has one named {session.name}"
                raise RequestError("session-already-exists", err)
            epoch = session.epoch if session.name is None else state.records.next_epoch(after)
            # Waiting requests were sent with other rights, and are answered in the epoch that they were sent for.
            if session.is_in_use or (session.inflight and epoch > session.epoch):
                raise self._in_use_error(session, peer)
            state.quotas.transfer(SESSIONS, session.holder, Holder(to.identity, session.holder.agent))
            epoch_before = session.epoch
            session.epoch = max(epoch_before, epoch)  # an earlier session of this name has used the lower ones
            state.sessions.transfer(session, to.identity)
            state.records.transfer(session, before, epoch_before)
        session.owner_principal, session.offered_to = to, None
        session.shares.clear()
        state.changes.touch_session(session)

    def _in_use_error(self, session: Session, peer: Peer) -> RequestError:
        name = self._state.access.name_for(session, peer)
        return RequestError("busy", f"session {name} is in use: interrupt it or wait")

    def _end_hidden(self, session: Session, now: float) -> None:
        """Answer requests in flight of clients that may not see the session any more, as if it did not exist."""
        state = self._state
        for query in [*session.inflight.values()]:
            if query.peer is not None and state.access.level(session, query.peer) == "none":
                error = RequestError("session-not-found", "the session is no longer shared with you")
                state.reply_error(query.peer, query.request_id, error)
                self._scheduler.lifecycle.on_request_finished(query, now)

    @staticmethod
    def _environment_notice(session: Session) -> str | None:
        """Return a notice if the next worker will not use the environment that an earlier owner chose."""
        if not session.spec.is_foreign_to(session.owner_principal):
            return None
        return f"its next worker runs the broker's own python: {session.spec.environment} was not its owner's choice"

    # --- ends ---

    def reset(self, request: wire.Reset, peer: Peer, _: bytes, now: float) -> None:
        """Give a session a fresh worker. The reply is sent when it has it."""
        session = self._state.lookup.get(request, peer)
        by = f" by {request.agent}" if request.agent else ""
        self._scheduler.teardown.lose_worker(session, f"reset{by}", now, code="session-reset")
        if session.state == CLOSED:  # an ephemeral session ends with its eval
            self._state.reply(peer, request.id, status=["done", "session-closed"], session=session.id)
            return
        session.waiters.append(ReadyWaiter(peer, request.id, created=None))
        self._scheduler.pool.acquire(session, now)

    def close(self, request: wire.Close, peer: Peer, _: bytes, now: float) -> None:
        """End a session."""
        if request.target is None:
            raise RequestError("invalid-request", "close requires session")
        session = self._state.lookup.get(request, peer)
        by = f" by {request.agent}" if request.agent else ""
        self._scheduler.teardown.close(session, f"closed{by}", now, asked=True)
        self._state.reply(peer, request.id, status=["done", "session-closed"], session=session.id, name=session.name)

    def ls_sessions(self, request: wire.LsSessions, peer: Peer, _: bytes, now: float) -> None:
        """Reply with the sessions that the sender may see."""
        state = self._state
        if request.session is not None:
            state.lookup.get(request, peer)  # routing does not depend on the op (REPLy scenario 106)
        entries = [
            views.session_entry(state, session, now, state.lookup.reference(session, request, peer))
            for session in state.sessions
            if self._is_visible(session, peer)
        ]
        state.reply(peer, request.id, status=["done"], sessions=entries)

    def _is_visible(self, session: Session, peer: Peer) -> bool:
        return not session.ephemeral and self._state.access.level(session, peer) != "none"
