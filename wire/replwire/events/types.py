"""Types of events, one struct each."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from replwire.documented import documented
from replwire.events.base import Event

EvalStatus = Literal["ok", "error", "cancelled", "timeout", "died", "refused"]


class BrokerStarted(Event, frozen=True, kw_only=True, rename="kebab", tag="broker/started"):
    """The broker has started."""

    version: str
    runtimes: list[str]
    limits: Annotated[dict[str, int], documented("limits that differ from the default")]


class BrokerShutdown(Event, frozen=True, kw_only=True, rename="kebab", tag="broker/shutdown"):
    """The broker shuts down in order. A killed broker sends no such event."""

    reason: str


class ConfigReloaded(Event, frozen=True, kw_only=True, rename="kebab", tag="config/reloaded"):
    """The broker has reloaded its config file."""

    reloaded: Annotated[list[str], documented("settings that have changed")]
    needs_restart: Annotated[list[str], documented("settings changed in the file that require a restart")]


class SessionCreated(Event, frozen=True, kw_only=True, rename="kebab", tag="session/created"):
    """A session was created."""

    name: str | None = None
    runtime: str
    environment: str | None = None
    cwd: str | None = None
    owner: Annotated[str, documented("identity of the session's owner")]
    project: Annotated[str | None, documented("project of a default session")] = None
    ephemeral: Annotated[bool, documented("true: an ephemeral session, without a transcript")] = False
    epoch: int


class SessionAdopted(Event, frozen=True, kw_only=True, rename="kebab", tag="session/adopted"):
    """The session goes on after a start of the broker, with its worker and all variables."""

    epoch: int
    running: Annotated[int | None, documented("eval that has run meanwhile, and goes on")] = None


class SessionBusy(Event, frozen=True, kw_only=True, rename="kebab", tag="session/busy"):
    """The session runs an eval."""

    canonical: ClassVar[bool] = False


class SessionIdle(Event, frozen=True, kw_only=True, rename="kebab", tag="session/idle"):
    """The session has nothing to run."""

    canonical: ClassVar[bool] = False


class SessionReset(Event, frozen=True, kw_only=True, rename="kebab", tag="session/reset"):
    """The session was reset by request: its worker was killed and its variables are lost."""

    reason: str
    epoch: Annotated[int, documented("the new epoch")]


class SessionLost(Event, frozen=True, kw_only=True, rename="kebab", tag="session/lost"):
    """The worker died or had to be killed: the session's variables are lost."""

    why: str
    epoch: Annotated[int, documented("the new epoch")]


class SessionMoved(Event, frozen=True, kw_only=True, rename="kebab", tag="session/moved"):
    """The session switched to another environment, with a new worker."""

    environment: Annotated[str | None, documented("as requested; absent: the broker's default")] = None
    executable: str | None = None
    epoch: int


class SessionClosed(Event, frozen=True, kw_only=True, rename="kebab", tag="session/closed"):
    """The session was closed. Its last event."""

    reason: str


class FileWritten(Event, frozen=True, kw_only=True, rename="kebab", tag="file/written"):
    """A client has put a file into the session."""

    file: Annotated[str, documented("its path in the session")]
    bytes: int


class EvalAccepted(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/accepted"):
    """An eval, or another queued operation, was accepted. Exactly one `eval/finished` follows."""

    op: str
    code: Annotated[
        str,
        documented(
            "the code, truncated to `event-text-bytes`; absent if hooks inspect it first: then `eval/started` has it"
        ),
    ] = ""
    code_truncated: bool = False
    epoch: int
    limit_ms: Annotated[int, documented("time limit")]
    request_id: str
    traceparent: Annotated[str | None, documented("the caller's span, from the request")] = None


class EvalQueued(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/queued"):
    """The eval is still waiting for its turn."""

    position: Annotated[int, documented("evals before it")]


class EvalStarted(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/started"):
    """The eval was sent to the worker."""

    worker: int
    queue_wait_ms: float
    code: Annotated[str, documented("the code, if hooks have judged it")] = ""
    code_truncated: bool = False


class EvalOutput(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/output"):
    """Live output of an eval, for subscribers with `output`."""

    canonical: ClassVar[bool] = False

    reply: Annotated[msgspec.Raw, documented("the message as sent to its client: `out`, `err`, `mime`, …")]


class EvalOutputEnd(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/output-end"):
    """End of an eval's live output, for subscribers with `output`."""

    canonical: ClassVar[bool] = False

    messages: int
    bytes: Annotated[int, documented("size of these messages")]


class EvalFinished(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/finished"):
    """The eval has ended. Sent exactly once per accepted eval, when the session can take the next one."""

    status: Annotated[EvalStatus, documented("outcome in one word")]
    reply_status: Annotated[list[str], documented("status of its reply on the wire")]
    duration_ms: Annotated[float | None, documented("run time of the code; absent if it never ran")] = None
    epoch: int
    value: str | None = None
    ns: str | None = None
    out: Annotated[str, documented("end of its stdout; all text of the event is within `event-text-bytes`")] = ""
    err: Annotated[str, documented("end of its stderr")] = ""
    images: Annotated[list[Any], documented("figures it drew, MIME type to data, as far as they fit")] = msgspec.field(
        default_factory=list
    )
    mime: Annotated[dict[str, Any] | None, documented("rich form of the value, if it fits")] = None
    truncated: Annotated[bool, documented("true: some of these fields are incomplete")] = False
    error: Annotated[str | None, documented("error message")] = None
    error_type: Annotated[str | None, documented("type of the exception, if the code raised one")] = None
    traceback: str | None = None
    cause: Annotated[str | None, documented("cause of its worker's death")] = None
    state: Annotated[str | None, documented("`kept`, `rolled-back` or `lost`: the earlier variables")] = None


class EvalInterruptRequested(Event, frozen=True, kw_only=True, rename="kebab", tag="eval/interrupt-requested"):
    """A client or the time limit requested an interrupt. `eval/finished` reports the result."""

    by: Annotated[str, documented("an agent, `a client`, or `time-limit`")]


class NetworkReached(Event, frozen=True, kw_only=True, rename="kebab", tag="network/reached"):
    """Connections of the session to a listed host have ended, within the same moment."""

    host: Annotated[str, documented("name or IPv4 address; never a URL")]
    port: int
    count: Annotated[int, documented("connections")]
    sent_bytes: int
    received_bytes: int


class NetworkRefused(Event, frozen=True, kw_only=True, rename="kebab", tag="network/refused"):
    """The session did not reach a host."""

    host: Annotated[str, documented("name or address as the code wrote it, truncated")]
    port: Annotated[int, documented("0: the name was refused when it was looked up")]
    count: Annotated[int, documented("attempts within the same moment")]
    reason: str
    by_policy: Annotated[bool, documented("true: a setting refused it; false: the host could not be reached")]


class NetworkHostsAdded(Event, frozen=True, kw_only=True, rename="kebab", tag="network/hosts-added"):
    """The session may reach more hosts for a time."""

    hosts: Annotated[list[str], documented("entries as in `sandbox.allowed-hosts`")]
    for_ms: int
    approved: Annotated[bool, documented("true: a person has approved; false: the setting allows")]


class NetworkHostsRemoved(Event, frozen=True, kw_only=True, rename="kebab", tag="network/hosts-removed"):
    """The session may reach these hosts no more, unless a list of the settings has them."""

    hosts: list[str]
    by: Annotated[str, documented("`time` or `request`")]


class WorkerSpawned(Event, frozen=True, kw_only=True, rename="kebab", tag="worker/spawned"):
    """A worker process was started."""

    worker: int
    runtime: str
    environment: str | None = None


class WorkerReady(Event, frozen=True, kw_only=True, rename="kebab", tag="worker/ready"):
    """The worker's interpreter is ready."""

    worker: int
    start_ms: float


class WorkerExited(Event, frozen=True, kw_only=True, rename="kebab", tag="worker/exited"):
    """A worker has exited, or is being stopped because it is no longer needed."""

    worker: int
    cause: str
    of: Annotated[str | None, documented("id of its session")] = None


class AdmissionRefused(Event, frozen=True, kw_only=True, rename="kebab", tag="admission/refused"):
    """A request exceeded a limit. At most one event per second, code and agent; `count` includes the others."""

    code: str
    limit: str
    limit_value: int
    err: str
    count: Annotated[int, documented("refusals since the last such event, including this one")]


class PolicyDecision(Event, frozen=True, kw_only=True, rename="kebab", tag="policy/decision"):
    """A rule, a mode, a hook or session ownership denied a request.

    At most one event per second, as for admission/refused; decisions of hooks are all reported, in their session.
    """

    verdict: Annotated[Literal["block", "ask"], documented("`ask`: a person has to decide")]
    code: str
    reason: str
    count: int
    hook: Annotated[str | None, documented("the deciding hook, `OWNER/NAME`; absent: the broker")] = None


class ExtensionLoaded(Event, frozen=True, kw_only=True, rename="kebab", tag="extension/loaded"):
    """An extension registered its contributions with the broker."""

    contributes: Annotated[list[str], documented("`KIND NAME` of each")]


class ExtensionError(Event, frozen=True, kw_only=True, rename="kebab", tag="extension/error"):
    """An extension raised an exception or timed out. Other extensions are not affected."""

    contribution: Annotated[str, documented("`KIND NAME` of the failed contribution")]
    error: str


class LogInfo(Event, frozen=True, kw_only=True, rename="kebab", tag="log/info"):
    """A line of the broker's log."""

    canonical: ClassVar[bool] = False

    text: str


class LogError(Event, frozen=True, kw_only=True, rename="kebab", tag="log/error"):
    """An internal error of the broker."""

    where: str
    summary: str
    correlation_id: str


class BusLagged(Event, frozen=True, kw_only=True, rename="kebab", tag="bus/lagged"):
    """Events were dropped for a slow or late subscriber: subscribe again with `since-seq`, or read the transcript."""

    canonical: ClassVar[bool] = False

    missed: Annotated[int, documented("events dropped, canonical and ephemeral")]
