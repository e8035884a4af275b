"""Servers of the reading bench: each step of a task in the words of one server.

A step may take several calls, all of which count. What a server cannot do is a call of its own that says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

from bench import procs
from bench.mcp_servers import POSIT, McpConversation, ToolAnswer, encode
from bench.reading_tasks import Step

JUPYTER = procs.ROOT / ".bench/jupyter-mcp/bin"  # `make bench` puts it there
_PORT = 18_931
_STATEMENT = re.compile(r"\s|import |print|for |while |plt\.show|\w+ = |\w+\.\w+\(.*\)\.start|ctypes\.")
_SEARCH = """for n in range(50_000):
    line = f"{n} {'NEEDLE 31415' if n == 25_000 else 'x' * 93}"
    if 'NEEDLE' in line:
        print(line)
"""


class ReadingExchange(NamedTuple):
    """One call as it was made, and its answer."""

    call: str
    answer: str
    pictures: int


class ReadingServer(ABC):
    """A server with a directory of its own, and the calls made to it since the last `take`."""

    tool_list = 0  # characters

    def __init__(self) -> None:
        self._made: list[ReadingExchange] = []

    def take(self) -> list[ReadingExchange]:
        """Return the calls made since the last time."""
        made, self._made = self._made, []
        return made

    @abstractmethod
    def do(self, step: Step) -> None:
        """Make the calls of one step."""

    @abstractmethod
    def close(self) -> None:
        """End the server, and what it started."""

    def _note(self, call: str, answer: str, pictures: int = 0) -> str:
        self._made.append(ReadingExchange(call, answer, pictures))
        return answer


class _McpServer(ReadingServer):
    """A server that speaks MCP."""

    def __init__(self, talk: McpConversation) -> None:
        super().__init__()
        self._talk = talk
        self.tool_list = len(encode(talk.ask("tools/list")["tools"]).decode())

    def _call(self, tool: str, **arguments: Any) -> str:
        reply: ToolAnswer = self._talk.call(tool, **arguments)
        given = {name: text for name, text in arguments.items() if text != ""}
        return self._note(f"{tool}({encode(given).decode()})", reply.text, reply.pictures)

    def close(self) -> None:
        """End it."""
        self._talk.close()


class _QuietConversation(McpConversation):
    """A conversation whose server's stderr is not shown."""

    log = Path(os.devnull)


class OursReading(_McpServer):
    """`replctl mcp`, with a broker that runs."""

    def __init__(self, directory: Path, argv: list[str], env: dict[str, str]) -> None:
        super().__init__(_QuietConversation(argv, directory, env))

    def do(self, step: Step) -> None:
        """Make the calls of one step."""
        session = {} if step.session == "a" else {"session": step.session}
        runtime = {} if step.runtime == "python" else {"runtime": step.runtime}
        if step.kind == "answer":
            self._call("stdin", text=step.text)
        elif step.kind == "search":
            found = re.search(r"read\(eval_id=(\d+)", self._made[-1].answer)
            self._call("read", eval_id=int(found[1]) if found else 0, grep=step.text)
        elif step.kind == "loop":
            self._call("eval", code=step.text, wait=1)
        elif step.kind == "stop":
            self._call("eval", code=step.text, interrupt=True)
        else:
            if step.kind == "reset":
                self._call("reset", **session)
            self._call("eval", code=step.text, **session, **runtime)


class PositReading(_McpServer):
    """`mcp-repl`: one session, one tool; bash and node as children of its Python."""

    def __init__(self, directory: Path) -> None:
        argv = [str(POSIT), "--interpreter", "python", "--sandbox", "workspace-write"]
        super().__init__(_QuietConversation(argv, directory, {"PATH": f"{POSIT.parent}:{os.environ['PATH']}"}))

    def do(self, step: Step) -> None:
        """Make the calls of one step."""
        before = {"stop": "\x03", "reset": "\x04"}.get(step.kind, "")
        if step.kind == "search":
            self._repl(f":/{step.text}")
            self._repl(":q")
            return
        result = self._repl(f"{before}{_as_child(step)}\n", 1_000 if step.kind == "loop" else 30_000)
        if "--More--" in result and "NEEDLE" not in step.text:
            self._repl(":q")

    def _repl(self, text: str, timeout_ms: int = 30_000) -> str:
        return self._call("repl", input=text, timeout_ms=timeout_ms)


class JupyterReading(_McpServer):
    """`jupyter-mcp-server` with a Jupyter server and a notebook, which are not counted."""

    def __init__(self, directory: Path) -> None:
        environ = {"PATH": f"{JUPYTER}:{os.environ['PATH']}"}
        argv = [str(JUPYTER / "jupyter-server"), f"--port={_PORT}", "--IdentityProvider.token=bench", "--no-browser"]
        argv += ["--allow-root", "--ip=127.0.0.1", f"--ServerApp.root_dir={directory}"]
        self._jupyter = procs.start(argv, environ, Path(os.devnull), cwd=directory)
        url = f"http://127.0.0.1:{_PORT}"
        _wait_for(f"{url}/api/status?token=bench")
        places = ["--document-url", url, "--code-sandbox-url", url, "--document-id", "a.ipynb"]
        tokens = ["--document-token", "bench", "--code-sandbox-token", "bench"]
        start = [str(JUPYTER / "jupyter-mcp-server"), "start", "--transport", "stdio", "--jupyterlab", "False"]
        super().__init__(_QuietConversation([*start, *places, *tokens], directory, environ))
        self._talk.call("use_notebook", notebook_name="a", notebook_path="a.ipynb", mode="create")
        self._session = "a"
        self._created = {"a"}

    def do(self, step: Step) -> None:
        """Make the calls of one step."""
        if step.kind == "answer":
            self._note("no call answers input()", "")
        elif step.kind == "search":
            self._call("execute_code", code=_SEARCH, timeout=10)
        else:
            if step.kind == "reset":
                self._call("restart_notebook", notebook_name=self._session)
            self._use(step.session if step.runtime == "python" else "a")
            self._call("execute_code", code=_as_child(step), timeout=2 if step.kind == "loop" else 10)

    def _use(self, session: str) -> None:
        if session == self._session:
            return
        mode = "connect" if session in self._created else "create"
        self._call("use_notebook", notebook_name=session, notebook_path=f"{session}.ipynb", mode=mode)
        self._session = session
        self._created.add(session)

    def close(self) -> None:
        """End it and its Jupyter server, with its kernels."""
        super().close()
        procs.stop(self._jupyter)


class BashReading(ReadingServer):
    """Plain bash, a process for each call: nothing stays, so each script makes again what it needs."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def do(self, step: Step) -> None:
        """Make the calls of one step."""
        if step.kind == "search":
            self._bash(f"python3 last.py | grep {step.text}")
        elif step.kind == "answer":
            self._bash(f"echo {step.text} | python3 last.py")
        elif step.runtime == "bash":
            self._bash(step.text)
        elif step.runtime == "node":
            self._bash(f"node -p '{step.text}'")
        else:
            self._write(step)
            if step.kind != "ask":  # that script is run when its answer is known
                self._bash(f"timeout {2 if step.kind == 'loop' else 30} python3 last.py")

    def _write(self, step: Step) -> None:
        *before, last = step.text.rstrip("\n").rsplit("\n", 1)
        shown = (
            last
            if re.match(r"\s|import |print|for |while |plt\.show|\w+ = |\w+\(.*\)\.start", last)
            else f"print({last})"
        )
        load = "import pandas as pd\ndf = pd.read_csv('sales.csv')\nkept = 5\nfrom pathlib import Path\n"
        helper = "import helper\n" if "reload(" in step.text else ""
        (self._directory / "last.py").write_text(load + helper + "\n".join([*before, shown]) + "\n")

    def _bash(self, command: str) -> str:
        environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MPLBACKEND": "agg"}
        done = subprocess.run(
            ["bash", "-c", command], cwd=self._directory, env=environ, capture_output=True, timeout=60, check=False
        )
        text = (done.stdout + done.stderr).decode("utf-8", "replace")
        text += f"\nexit status {done.returncode}" if done.returncode else ""
        return self._note(f"bash({command!r})", text)

    def close(self) -> None:
        """End nothing: each call has ended its process."""


def _as_child(step: Step) -> str:
    """Return code of another runtime as a child process of Python."""
    if step.runtime == "bash":
        return (
            f"import subprocess\ndone = subprocess.run(['bash', '-c', {step.text!r}], capture_output=True, text=True)\n"
            "print(done.stdout, done.stderr, done.returncode)"
        )
    if step.runtime == "node":
        run = f"subprocess.run(['node', '-p', {step.text!r}], capture_output=True, text=True)"
        return f"import subprocess\nprint({run}.stdout)"
    return step.text


def _wait_for(url: str) -> None:
    end = time.monotonic() + procs.READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
