"""Attempts by code in a session to use up shared resources. None of them runs without a sandbox.

That each does what it says shows in how its eval ends; that it would get further without its bound, the attack of
`control` shows, which is the same with an end.
"""

from __future__ import annotations

from dataclasses import dataclass

DEAF = "import os, signal, sys, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
KILLED = "timeout, state lost"
KILLED_AND_BACK = "timeout, state rolled-back"  # python has checkpoints
WENT_ON = "ok, state kept"


@dataclass(frozen=True)
class Exhaustion:
    """`held_by`: layers, or `worker` and `broker` for their own bounds and kills. `ends`: how its eval does."""

    runtime: str
    name: str
    held_by: tuple[str, ...]
    ends: str
    code: str
    control: str | None = None
    group: bool = False  # ends so by a control group alone, so only where there is one
    endless: bool = False  # but for its time limit, although that is not how it is said to end
    or_else: str = ""  # another way: which of its bounds it meets first is chance, or there are no control groups

    @property
    def id(self) -> str:
        return f"{self.runtime}: {self.name}"


EXHAUSTIONS = [
    Exhaustion(
        "python",
        "fork and fork again, deaf to signals",
        ("limits", "pids", "processes"),
        KILLED_AND_BACK,
        DEAF + "while True:\n    try: os.fork()\n    except OSError: pass",
        "python: start processes without end",
    ),
    Exhaustion(
        "python",
        "take memory and more memory",
        ("limits",),
        "MemoryError, state kept",
        "held = []\nwhile True: held.append(bytearray(1 << 20))",
        "python: take memory in one process",
    ),
    Exhaustion(
        "python",
        "take memory in processes that never end",
        ("memory",),
        KILLED_AND_BACK,
        DEAF
        + "while True:\n    try:\n        if os.fork() == 0:\n            held = b'x' * (60 << 20)\n            time.sleep(60)\n    except OSError: pass",
        "python: take memory in many processes",
        group=True,
    ),
    Exhaustion(
        "python",
        "take memory that is shared, and more",
        ("memory",),
        "worker-lost, state rolled-back: out of memory: 256 MiB (sandbox.memory-bytes)",
        "import mmap\nheld = mmap.mmap(-1, 1 << 30)\nwhile True: held.write(bytes(1 << 20))",
        "python: take memory that is shared",
        group=True,
    ),
    Exhaustion(
        "python",
        "start threads and more threads",
        ("limits", "pids"),
        "RuntimeError, state kept",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "python: start threads without end",
    ),
    Exhaustion(
        "python",
        "open files and more files",
        ("limits",),
        "OSError, state kept",
        "import os\nheld = []\nwhile True: held.append(os.dup(0))",
        "python: open files without end",
    ),
    Exhaustion(
        "python",
        "write and write to a file",
        ("limits",),
        "OSError, state kept",
        "with open('big', 'wb', 0) as file:\n    while True: file.write(bytes(1 << 20))",
        "python: write a file without end",
    ),
    Exhaustion(
        "python",
        "write and write to /tmp",
        ("limits",),
        "OSError, state kept",
        "n = 0\nwhile True:\n    n += 1\n    with open(f'/tmp/{n}', 'wb', 0) as file: file.write(bytes(1 << 20))",
        "python: fill /tmp",
    ),
    Exhaustion(
        "python",
        "print and print",
        ("worker",),
        "timeout, state kept, output dropped",
        "while True: print('x' * 10**6)",
    ),
    Exhaustion(
        "python",
        "write bytes of no encoding to stderr, never a line",
        ("worker",),
        "timeout, state kept, output dropped",
        "import os\nwhile True: os.write(2, b'\\xff\\xfe\\x00\\x1b' * 20_000)",
    ),
    Exhaustion(
        "python",
        "print from a process that outlives the eval",
        ("worker", "processes"),
        WENT_ON,
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: os.write(1, b'x' * 100_000)",
    ),
    Exhaustion("python", "loop, deaf to signals", ("broker",), KILLED_AND_BACK, DEAF + "while True: pass"),
    Exhaustion(
        "python",
        "leave in the middle",
        ("broker",),
        "worker-lost, state rolled-back: the interpreter exited with code 7",
        "import os\nos._exit(7)",
    ),
    Exhaustion(
        "python",
        "crash",
        ("broker",),
        "worker-lost, state rolled-back: the interpreter was killed by SIGSEGV (signal 11)",
        "import ctypes\nctypes.string_at(0)",
    ),
    Exhaustion(
        "python",
        "close every descriptor",
        ("worker",),
        "worker-lost, state rolled-back",
        "import os\nos.closerange(3, 256)",
    ),
    Exhaustion(
        "python",
        "say nonsense to the worker",
        ("worker",),
        "worker-lost, state rolled-back",
        "import os, stat\nfor fd in range(3, 60):\n    try:\n        if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, b'\\xff' * 1000)\n    except OSError: pass",
    ),
    Exhaustion(
        "python",
        "send descriptors to the worker",
        ("worker",),
        "worker-lost, state rolled-back",
        "import array, os, socket, stat\nthree = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2]))]\nfor fd in range(3, 60):\n    try:\n        if stat.S_ISSOCK(os.fstat(fd).st_mode):\n            end = socket.socket(fileno=os.dup(fd))\n            for _ in range(200): end.sendmsg([b'\\xff'], three)\n    except OSError: pass",
    ),
    Exhaustion(
        "python",
        "kill every process there is",
        ("processes",),
        WENT_ON,
        "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass",
    ),
    Exhaustion(
        "python",
        "stop itself",
        ("broker",),
        "worker-lost, state rolled-back: the interpreter was stopped by a signal",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        endless=True,
    ),
    Exhaustion(
        "python",
        "kill the parent",
        ("processes",),
        "PermissionError, state kept",
        "import os\nos.kill(os.getppid(), 9)",
    ),
    Exhaustion(
        "python",
        "leave a daemon that is deaf",
        ("processes",),
        WENT_ON,
        DEAF
        + "if os.fork() == 0:\n    os.setsid()\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    if os.fork() == 0:\n        while True: time.sleep(60)\n    os._exit(0)\nos.wait()",
    ),
    Exhaustion(
        "python",
        "never come to an end at exit",
        ("broker",),
        WENT_ON,
        "import atexit, threading, time\natexit.register(time.sleep, 600)\nthreading.Thread(target=time.sleep, args=(600,)).start()",
    ),
    Exhaustion(
        "python",
        "break what the interpreter's own side might use",
        ("worker",),
        WENT_ON,
        "import builtins, json, os, select, socket, struct, sys\nfor module, names in ((builtins, 'len print repr isinstance'), (json, 'dumps loads'), (os, 'read write'), (struct, 'pack unpack'), (select, 'select')):\n    for name in names.split(): setattr(module, name, None)\nsys.stdout = sys.stderr = None",
    ),
    Exhaustion(
        "node",
        "take memory and more memory",
        ("limits", "memory"),
        "worker-lost, state lost",
        "const held = []; for (;;) held.push(new Array(100_000).fill(0.5))",
        "node: take memory in one process",
    ),
    Exhaustion("node", "promise without end", ("broker",), "timeout, state kept", "for (;;) await null"),
    Exhaustion(
        "node",
        "print and print",
        ("worker",),
        "timeout, state kept, output dropped",
        "for (;;) console.log('x'.repeat(1e6))",
    ),
    Exhaustion(
        "node",
        "start threads and more threads",
        ("limits", "pids"),
        "Error, state kept",
        "const { Worker } = require('worker_threads'); for (;;) new Worker('setInterval(() => {}, 1000)', { eval: true })",
        "python: start threads without end",
        or_else="worker-lost, state lost",
    ),
    Exhaustion(
        "node",
        "leave in the middle",
        ("broker",),
        "worker-lost, state lost: the interpreter exited with code 7",
        "process.reallyExit(7)",
    ),
    Exhaustion(
        "node",
        "crash",
        ("broker",),
        "worker-lost, state lost: the interpreter was killed by SIGABRT (signal 6)",
        "process.abort()",
    ),
    Exhaustion(
        "node",
        "kill every process there is",
        ("worker",),
        "worker-lost, state lost: the code broke what node needs to run more",
        "process.kill(-1, 9)",
    ),
    Exhaustion(
        "node",
        "stop itself",
        ("broker",),
        "worker-lost, state lost: the interpreter was stopped by a signal",
        "process.kill(process.pid, 'SIGSTOP')",
        endless=True,
    ),
    Exhaustion(
        "node",
        "kill itself",
        ("broker",),
        "worker-lost, state lost: the interpreter was killed by SIGKILL (signal 9)",
        "process.kill(process.pid, 9)",
    ),
    Exhaustion(
        "node",
        "say nonsense to the worker",
        ("worker",),
        "worker-lost, state lost",
        "const fs = require('fs'); for (let fd = 3; fd < 60; fd++) try { if (fs.fstatSync(fd).isSocket()) fs.writeSync(fd, Buffer.alloc(1000, 255)) } catch {}",
    ),
    Exhaustion(
        "bash",
        "fork and fork again",
        ("limits", "pids", "processes"),
        KILLED,
        "trap '' INT TERM\nbomb() { bomb | bomb & }\nbomb 2> /dev/null\nwhile :; do :; done",
        "python: start processes without end",
    ),
    Exhaustion("bash", "print and print", ("worker",), "timeout, state kept, output dropped", "yes"),
    Exhaustion(
        "bash",
        "write and write to a file",
        ("limits",),
        WENT_ON,
        "cat /dev/zero > big",
        "bash: write a file without end",
    ),
    Exhaustion("bash", "loop, deaf to signals", ("broker",), KILLED, "trap '' INT TERM; while :; do :; done"),
    Exhaustion("bash", "kill every process there is", ("processes",), WENT_ON, "kill -9 -1"),
    Exhaustion(
        "bash",
        "stop itself",
        ("broker",),
        "worker-lost, state lost: the interpreter was stopped by a signal",
        "kill -STOP $$",
        endless=True,
    ),
    Exhaustion(
        "bash",
        "kill itself",
        ("broker",),
        "worker-lost, state lost: the interpreter was killed by SIGKILL (signal 9)",
        "kill -9 $$",
    ),
    Exhaustion(
        "bash", "become another program", ("worker",), "worker-lost, state lost", "exec sleep 600", endless=True
    ),
    Exhaustion(
        "bash",
        "close every descriptor",
        ("worker",),
        "worker-lost, state lost: the interpreter closed its control channel",
        'for n in $(seq 3 255); do eval "exec $n>&-"; done',
    ),
    Exhaustion(
        "bash",
        "leave a process that is deaf",
        ("processes",),
        WENT_ON,
        "nohup setsid bash -c 'trap \"\" TERM; sleep 600' > /dev/null 2>&1 & disown",
    ),
]
