"""Embed a broker with an operation, a guard and a subscriber: `python -m docs.embedded`."""

import threading
from collections.abc import Generator
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from replctl import Broker, ReplError
from replctl.ext import Block, ExtensionOperation, Hook, HookRequest, OperationContext, call, hookimpl


class Total(msgspec.Struct, forbid_unknown_fields=True):
    """Sum a variable of a session."""

    session: str
    name: str


def total(args: Total, context: OperationContext) -> Generator[Any, Any, dict[str, str | None]]:
    """Return the sum, and the agent that asked."""
    replies = yield from call("eval", session=args.session, code=f"sum({args.name})")
    return {"sum": replies.check().value, "for": context.agent}


def guard(request: HookRequest) -> Block | None:
    """Refuse code that imports `socket`."""
    return Block("no sockets here") if request.analysis and "socket" in request.analysis.imports else None


@hookimpl
def replctl_register(register: Any) -> None:
    """Contribute both to the broker."""
    register(ExtensionOperation(name="total", args=Total, run=total, requires=("eval",)))
    register(Hook(name="guard", before_eval=guard))


def main() -> None:
    """Run a broker, and use it from two threads."""
    with Broker(config={"extensions": [{"path": __file__}]}) as broker, broker.client(agent="ada") as client:
        client.eval("sales = [3, 4, 5]", "work")
        (watching := threading.Thread(target=watch, args=(broker,))).start()
        print("total:", client.request("total", session="work", name="sales").result)
        with suppress(ReplError):
            client.eval("import socket", "work")
        watching.join()


def watch(broker: Broker) -> None:
    """Print how the first three evals of the session ended."""
    with broker.client() as client:
        ends = islice(client.events("work", types=["eval/finished"], since=0), 3)
        print("evals:", *(event["status"] for event in ends))


if __name__ == "__main__":
    main()
