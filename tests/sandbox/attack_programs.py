"""Texts of attacks as they run: preludes, the attempt, and the report of its outcome."""

from __future__ import annotations

from attacks import Attack

PRELUDES = {
    "python": r'''
import ctypes, mmap, os, resource, socket, struct, sys, threading, time
E = os.environ
X86 = os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p

def call(*args):
    return libc.syscall(*(ctypes.c_long(each) if isinstance(each, int) else each for each in args))

def unix(address):
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        return True

def environ(pid):
    try:
        with open(f"/proc/{pid}/environ") as file:
            return file.read()
    except OSError:
        return ""

def apart(action):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if action() else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0

def cloned(flags):
    pid = call(56 if X86 else 220, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid > 0 and os.waitpid(pid, 0)[0]

def peek(pid):
    here, there = ctypes.create_string_buffer(4), ctypes.create_string_buffer(b"mine")
    local = struct.pack("PN", ctypes.addressof(here), 4)
    remote = struct.pack("PN", ctypes.addressof(there), 4)
    return call(310 if X86 else 270, pid, local, 1, remote, 1, 0) == 4

def handle(path):
    found, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136), ctypes.c_int()
    if call(303 if X86 else 264, -100, path.encode(), found, ctypes.byref(mount), 0):
        return False
    root = os.open("/", os.O_RDONLY)
    return call(304 if X86 else 265, root, found, 0) >= 0

def forked(most):
    pids = []
    try:
        for _ in range(most):
            pid = os.fork()
            if pid == 0:
                time.sleep(30)
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return len(pids)

def threads(most):
    stop = threading.Event()
    started = [threading.Thread(target=stop.wait, daemon=True) for _ in range(most)]
    try:
        for thread in started:
            thread.start()
    finally:
        stop.set()
    return len(started)

def among(processes, size):
    import select
    back, out = os.pipe()
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            memory = bytearray(size)
            os.write(out, b"x")
            time.sleep(30)
            os._exit(0)
        pids.append(pid)
    os.close(out)
    got = 0
    while got < processes and len(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) or ()) == 0:
        if select.select([back], [], [], 0.05)[0]:
            got += len(os.read(back, 10))
    for pid in pids:
        os.kill(pid, 9)
    return got == processes

def filled(path, megabytes):
    """In files that are small enough one by one."""
    made = [f"{path}-{number}" for number in range(megabytes)]
    try:
        for name in made:
            with open(name, "wb") as file:
                file.write(bytes(1 << 20))
        return True
    finally:
        for name in filter(os.path.exists, made):
            os.unlink(name)

''',
    "node": """
const fs = require('fs'), net = require('net'), child = require('child_process'), E = process.env;
const connected = (to) => new Promise((done, fail) => {
  const end = net.connect(to, () => { end.destroy(); done(true) });
  end.on('error', fail);
});
""",
    "bash": "",
}
TRIES = {
    "python": """
def tried():
    try:
        result = attack()
    except BaseException as error:
        return f"HELD {type(error).__name__} {error}"
    return "OUT" if result else f"HELD returned {result} {os.strerror(ctypes.get_errno())}"
""",
    "node": """
const tried = () => attack().then(
  (got) => got ? 'OUT' : 'HELD returned ' + got, (error) => 'HELD ' + String(error).split('\\n')[0]);
""",
    "bash": """
tried() { if (attack) > /dev/null 2>&1; then echo OUT; else echo "HELD $?"; fi; }
""",
}
# As a program of its own, which waits for a line until its workspace is there.
PROGRAMS = {
    "python": """
print("here", flush=True)
sys.stdin.readline()
os.chdir(E["WORKSPACE"])
print(tried(), flush=True)
os._exit(0)
""",
    "node": """
console.log('here');
process.stdin.once('data', () => {
  process.chdir(E.WORKSPACE);
  tried().then((said) => console.log(said)).then(() => process.exit(0));
});
""",
    "bash": """
echo here
read -r _
cd "$WORKSPACE" && tried || echo "HELD no workspace"
""",
}
EVALS = {"python": "print(tried())", "node": "console.log(await tried())", "bash": "tried"}


def program(attack: Attack) -> str:
    """The whole text to be run in an interpreter of its own."""
    return _tries(attack) + PROGRAMS[attack.runtime]


def block(attack: Attack) -> str:
    """The whole text to be run in a session that has the workspace as its directory."""
    return _tries(attack) + EVALS[attack.runtime]


def _tries(attack: Attack) -> str:
    lines = attack.code.splitlines()
    body = {
        "python": "\n".join(["def attack():", *("    " + line for line in lines)]),
        "node": f"const attack = async () => {{ {attack.code} }};",
        "bash": f"attack() {{ {attack.code}\n}}",
    }
    return PRELUDES[attack.runtime] + body[attack.runtime] + TRIES[attack.runtime]
