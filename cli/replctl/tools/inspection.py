"""Read-only queries: sessions, variables, documentation, completions, jobs, stacks, environments."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from replctl.file_changes import change_lines
from replctl.tools.base import ToolCall, ToolContext, ToolResult, request
from replctl.tools.text_budget import clean, fold
from replwire.identifiers import DEFAULT_SESSION
from replwire.limits import MIB
from replwire.quantities import count_of

_CODE = 80  # characters of an eval's code in a list


class InfoQuery(NamedTuple):
    """Arguments of an `info` query."""

    session: str = DEFAULT_SESSION
    name: str | None = None
    code: str | None = None
    pos: int | None = None


def sessions(at: ToolContext) -> ToolCall:
    """List all sessions."""
    entries = (yield from request("ls-sessions")).get("sessions") or []
    lines = [
        f"{each['ref']}: {each['state']}, {each['runtime']}, epoch {each['epoch']}, "
        f"{count_of(each['eval-count'], 'eval')}"
        + (f", {each['queued']} queued" if each["queued"] else "")
        + (f", opened by {each['agent']}" if each["agent"] else "")
        + (f", in {each['cwd']}" if each["cwd"] else "")
        for each in entries
    ]
    keys = ("name", "session", "state", "runtime", "epoch", "eval-count", "owner", "agent", "cwd")
    facts = [{key.replace("-", "_"): each[key] for key in keys if each[key] is not None} for each in entries]
    return _listing(at, "no sessions", lines, "sessions", facts)


def clone(session: str, to: str) -> ToolCall:
    """Clone a session."""
    reply = yield from request("clone", session=session, name=to)
    name = reply.get("name") or reply.get("new-session")
    left = reply.get("skipped") or []
    text = f"session {name} is a copy of {session}: {count_of(reply.get('count'), 'name')}"
    if left:
        text += "; not copied: " + ", ".join(f"{each['name']} ({each['why']})" for each in left)
    facts = {"status": "ok", "session": name, "count": reply.get("count"), "skipped": left}
    return ToolResult(text=text, structured=facts)


def branch(session: str, to: str) -> ToolCall:
    """Branch a session."""
    reply = yield from request("branch", session=session, name=to)
    name, missing = reply.get("name") or reply.get("new-session"), reply.get("not-restored") or []
    text = f"session {name} begins as a copy of {session}; both have the same files and limits"
    text += "".join(f"\n[not copied: {each}]" for each in missing)
    facts = {"status": "ok", "session": name, "checkpoint": reply.get("checkpoint"), "skipped": missing}
    return ToolResult(text=text, structured=facts)


def session_info(q: InfoQuery, at: ToolContext) -> ToolCall:
    """Describe the session and its variables."""
    facts = (yield from request("info", session=q.session)).get("info") or {}
    rows = [
        f"session {q.session}: {facts.get('state')}, {facts.get('runtime')} {facts.get('version') or ''}".rstrip(),
        f"epoch {facts.get('epoch')}, {count_of(facts.get('eval-count'), 'eval')}, {facts.get('queued')} queued",
    ]
    if facts.get("memory-bytes"):
        rows.append(f"memory {facts['memory-bytes'] / 1e6:.1f} MB, cpu {facts.get('cpu-seconds')} s")
    rows += [f"directory {facts.get('cwd') or 'not set'}", f"interpreter {facts.get('executable') or 'not started'}"]
    rows.append(_sandbox_line(facts))
    listed = _variables(at, facts)
    keys = ("state", "runtime", "version", "epoch", "eval-count", "queued", "cwd", "executable", "memory-bytes")
    some = {key.replace("-", "_"): facts[key] for key in keys if facts.get(key) is not None}
    return ToolResult(
        text="\n".join([*rows, listed.text]), structured={"session": q.session, **some, **listed.structured}
    )


_NETWORKS = {"none": "no network", "list": "network to sandbox.allowed-hosts alone", "host": "network of the machine"}


def _sandbox_line(facts: dict[str, Any]) -> str:
    """Return in one line what the session may do: network, places to write, memory."""
    box = facts.get("sandbox")
    if not isinstance(box, dict):
        return "sandbox: none, code has the rights of its user"
    tighter, limits = box.get("tighter") or {}, box.get("limits") or {}
    network = tighter.get("network") or box.get("network")
    profile = tighter.get("profile") or box.get("profile")
    places = [facts.get("workspace"), *(box.get("writable-paths") or [])] if profile != "read-only" else []
    tmp = f"/tmp ({limits.get('tmp-bytes', 0) // MIB} MiB, emptied by a reset)"
    memory = ((facts.get("memory") or {}).get("limit") or 0) // MIB
    return (
        f"sandbox: {_NETWORKS.get(str(network), f'network {network}')}; "
        f"writes in {', '.join([*filter(None, places), tmp])}; files up to {limits.get('file-bytes', 0) // MIB} MiB; "
        f"memory {memory} MiB, {limits.get('pids')} processes"
    )


def variables(q: InfoQuery, at: ToolContext) -> ToolCall:
    """List the variables."""
    return _variables(at, (yield from request("info", session=q.session)).get("info") or {})


def lookup(q: InfoQuery, at: ToolContext) -> ToolCall:
    """Look up a name."""
    if not q.name:
        return _missing_argument("lookup", "name")
    reply = yield from request("lookup", symbol=q.name, session=q.session)
    if not reply.get("found"):
        return ToolResult(
            text=f"{q.name} is not defined in session {q.session}", structured={"status": "not-found", "name": q.name}
        )
    where = f" ({reply['file']}:{reply.get('line')})" if reply.get("file") else ""
    doc = fold(clean(reply.get("doc") or "").text, at.settings.budget - 500, at.settings.line).text
    signature = reply.get("signature") or ""
    lines = [f"{reply.get('name') or q.name}{signature}: {reply.get('type')}{where}", doc]
    lines += [str(each) for each in reply.get("methods") or []]
    facts = {key: reply[key] for key in ("name", "type", "signature", "file", "line") if reply.get(key) is not None}
    text = fold("\n".join(line for line in lines if line), at.settings.budget, at.settings.line).text
    return ToolResult(text=text, structured={"status": "ok", **facts, "doc": doc})


def complete(q: InfoQuery, at: ToolContext) -> ToolCall:
    """List completions."""
    if q.code is None:
        return _missing_argument("complete", "code")
    pos = len(q.code) if q.pos is None else q.pos
    reply = yield from request("complete", code=q.code, pos=pos, session=q.session)
    found = reply.get("completions") or []
    lines = [f"{each['text']}: {each.get('type')}" for each in found]
    return _listing(at, "no completions", lines, "completions", found)


def jobs(q: InfoQuery, at: ToolContext) -> ToolCall:
    """List queued, running and recent evals."""
    entries = (yield from request("jobs", session=q.session)).get("jobs") or []
    lines, facts = [], []
    for each in entries:
        end = next((word for word in each["status"] if word not in ("done", "error")), None)
        state = each["state"] if each["state"] != "done" else end or ("error" if "error" in each["status"] else "ok")
        state += ", undone" if each.get("undone") else ""
        code = " ".join(each["code"].split())[:_CODE]
        took = f", {each['duration-ms']:.0f} ms" if each.get("duration-ms") is not None else ""
        lines.append(f"{each['eval-id']}: {state}{took}: {code}")
        facts.append({"eval_id": each["eval-id"], "state": state, "epoch": each["epoch"], "code": code})
    return _listing(at, "no evals", lines, "jobs", facts)


def checkpoints(q: InfoQuery, at: ToolContext) -> ToolCall:
    """List checkpoints."""
    entries = (yield from request("ls-checkpoints", session=q.session)).get("checkpoints") or []
    lines = [
        f"{each['checkpoint']}{' (' + each['checkpoint-name'] + ')' if each['checkpoint-name'] else ''}: "
        f"after eval {each['eval-id']}, {each['created']}{', current' if each['current'] else ''}"
        for each in entries
    ]
    facts = [{key.replace("-", "_"): value for key, value in each.items() if value is not None} for each in entries]
    return _listing(at, "no checkpoints", lines, "checkpoints", facts)


def diff(q: InfoQuery, at: ToolContext) -> ToolCall:
    """Show what has changed in the session's directory since a checkpoint, `name`, or before the last eval."""
    reply = yield from request("diff", session=q.session, checkpoint=q.name)
    changes, number = reply.get("file-changes") or [], reply.get("checkpoint")
    pairs = [(each["change"], each["path"]) for each in changes]
    lines = change_lines(pairs, clean(reply.get("patch") or "").text, truncated=bool(reply.get("truncated")))
    return _listing(at, f"no file has changed since checkpoint {number}", lines, "file_changes", changes)


def stack(q: InfoQuery, at: ToolContext) -> ToolCall:
    """Show the current stacks."""
    threads = (yield from request("stack", session=q.session)).get("threads") or []
    lines = []
    for thread in threads:
        lines += [thread["name"], *(f"  {frame['func']} {frame['file']}:{frame['line']}" for frame in thread["frames"])]
    text = "\n".join(lines)
    text = fold(text or "no threads", at.settings.budget, at.settings.line).text
    return ToolResult(text=text, structured={"status": "ok", "session": q.session, "threads": text})


INFO_QUERIES: dict[str, Callable[[InfoQuery, ToolContext], ToolCall]] = {
    "session": session_info,
    "variables": variables,
    "lookup": lookup,
    "complete": complete,
    "jobs": jobs,
    "checkpoints": checkpoints,
    "diff": diff,
    "stack": stack,
}


def environment(fields: dict[str, Any]) -> ToolCall:
    """Show or change a session's environment; a change gives it a fresh worker."""
    reply = yield from request("env", **fields)
    now = reply.get("environment")
    which = f"{now or 'no environment of its own'}, {reply.get('executable') or 'not started'}"
    text = f"session {fields['session']}: {which}"
    if reply.get("state") == "lost" or fields["action"] != "show":
        text += f"; fresh worker (epoch {reply.get('epoch')}), its variables are lost"
    facts = {
        "status": "ok",
        "session": fields["session"],
        "environment": now,
        "executable": reply.get("executable"),
        "epoch": reply.get("epoch"),
    }
    return ToolResult(text=text, structured={name: fact for name, fact in facts.items() if fact is not None})


def allow_hosts(session: str, hosts: list[str]) -> ToolCall:
    """Let a session reach more hosts for a time."""
    reply = yield from request("allow-hosts", session=session, hosts=hosts)
    more = reply.get("more-hosts") or {}
    shown = ", ".join(f"{entry} until {until}" for entry, until in more.items()) or "the hosts of its list alone"
    notice = f"; {reply['notice']}" if reply.get("notice") else ""
    facts = {"status": "ok", "session": session, "more_hosts": more}
    return ToolResult(text=f"session {session} may reach {shown}{notice}", structured=facts)


def _variables(at: ToolContext, facts: dict[str, Any]) -> ToolResult:
    found = facts.get("variables")
    if found is None:
        why = "an eval is running" if facts.get("running") is not None else "no worker yet"
        return ToolResult(text=f"variables: not available now ({why})", structured={"status": "ok"})
    lines = []
    for each in found:
        shape = each.get("shape")
        size = (
            f" {'x'.join(map(str, shape))}" if shape else f" of {each['size']}" if each.get("size") is not None else ""
        )
        preview = f" = {each['preview']}" if each.get("preview") is not None else ""
        lines.append(f"{each['name']}: {each['type']}{size}{preview}")
    return _listing(at, "no variables", lines, "variables", found)


def _listing(at: ToolContext, nothing: str, lines: list[str], key: str, facts: list[dict[str, Any]]) -> ToolResult:
    """Build a result with lines for a model, and entries for a program within the text budget."""
    text = fold("\n".join(lines) or nothing, at.settings.budget, at.settings.line).text
    room, some = at.settings.budget, []
    for each in facts:
        room -= len(json.dumps(each))
        if room < 0:
            break
        some.append(each)
    more = {"more": len(facts) - len(some)} if len(some) < len(facts) else {}
    return ToolResult(text=text, structured={"status": "ok", key: some, **more})


def _missing_argument(what: str, name: str) -> ToolResult:
    return ToolResult(text=f"{what} needs `{name}`", structured={"status": "bad-arguments"}, error=True)
