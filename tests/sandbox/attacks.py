"""Attacks by code in a session, one small program each, with the layer that must stop it.

A program is the body of a function. It got out when it returns something; it was held when it raises, returns
nothing, or dies. It finds what it may aim at in its environment: sentinels that the arena laid out, nothing of the
machine's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Control = Literal["always", "root", "feature"]


@dataclass(frozen=True)
class Attack:
    """`layers`: who stops it; where there is one alone, nothing else does. `control` says when the same program gets
    out bare: always, only as root, or where the kernel has the feature at all."""

    name: str
    layers: tuple[str, ...]
    code: str
    runtime: str = "python"
    control: Control = "always"
    profile: str = "workspace-write"
    group: bool = False  # held by a control group alone, so only where there is one

    @property
    def id(self) -> str:
        return f"{self.runtime}: {self.name}"


def _python() -> list[Attack]:
    a = Attack
    return [
        a("read a file by its path", ("mounts",), "return open(E['SECRET']).read()"),
        a("read a file through /proc/self/root", ("mounts",), "return open('/proc/self/root' + E['SECRET']).read()"),
        a(
            "read a file through /proc/1/root",
            ("mounts", "landlock"),
            "return open(f\"/proc/{E['INIT']}/root{E['SECRET']}\").read()",
        ),
        a(
            "read a file through /proc/1/cwd",
            ("mounts", "landlock"),
            "return open(f\"/proc/{E['INIT']}/cwd/{'../' * 20}{E['SECRET']}\").read()",
        ),
        a(
            "read a file through a symlink in the workspace",
            ("mounts",),
            "os.symlink(E['SECRET'], 'link')\nreturn open('link').read()",
        ),
        a("read the passwords", ("mounts", "user"), "return open(E['PASSWORDS']).read(1)"),
        a("list the broker's home", ("mounts",), "return os.listdir(E['HIDDEN_HOME'])"),
        a("write beside the workspace", ("mounts",), "open(E['BESIDE'] + '/made', 'w').close()\nreturn True"),
        a("write /usr", ("mounts", "user"), "os.close(os.open(E['SYSTEM'], os.O_WRONLY | os.O_TMPFILE))\nreturn True"),
        a(
            "write the workspace in profile read-only",
            ("mounts", "landlock"),
            "open('made', 'w').close()\nreturn True",
            profile="read-only",
        ),
        a("write a protected file", ("workspace",), "open('.git/config', 'a').close()\nreturn True"),
        a(
            "write into a protected directory",
            ("workspace",),
            "open('.git/hooks/pre-commit', 'w').close()\nreturn True",
        ),
        a(
            "rename the protected directory's parent away",
            ("workspace",),
            "os.rename('.git', 'elsewhere')\nos.makedirs('.git/hooks')\nopen('.git/hooks/pre-commit', 'w').close()\nreturn True",
        ),
        a(
            "replace a protected file",
            ("workspace",),
            "open('other', 'w').close()\nos.rename('other', '.envrc')\nreturn True",
        ),
        a(
            "make a repository another's",
            ("workspace",),
            "open('.git/commondir', 'w').write('../elsewhere')\nreturn True",
        ),
        a(
            "make settings of a worktree",
            ("workspace",),
            "open('.git/config.worktree', 'w').write('[core]')\nreturn True",
        ),
        a(
            "write a hook of a submodule",
            ("workspace",),
            "open('.git/modules/sub/hooks/post-checkout', 'w').close()\nreturn True",
        ),
        a(
            "lead a worktree elsewhere",
            ("workspace",),
            "open('.git/worktrees/tree/commondir', 'w').close()\nreturn True",
        ),
        a(
            "write the steps of a rebase",
            ("workspace",),
            "open('.git/rebase-merge/git-rebase-todo', 'a').close()\nreturn True",
        ),
        a("lead a submodule elsewhere", ("workspace",), "os.rename('sub', 'other')\nreturn True"),
        a(
            "make a directory of settings",
            ("workspace",),
            "os.makedirs('.cursor', exist_ok=True)\nopen('.cursor/mcp.json', 'w').close()\nreturn True",
        ),
        a("make a file of settings", ("workspace",), "open('.mcp.json', 'w').close()\nreturn True"),
        a("put settings in their place", ("workspace",), "os.mkdir('new')\nos.rename('new', '.gemini')\nreturn True"),
        a("read what is hidden in the workspace", ("workspace",), "return open('state/broker.sock').read()"),
        a(
            "make a set-user-id program",
            ("seccomp",),
            "open('tool', 'w').close()\nos.chmod('tool', 0o4755)\nreturn True",
        ),
        a(
            "make a set-group-id program by fchmod",
            ("seccomp",),
            "f = open('tool', 'w')\nos.fchmod(f.fileno(), 0o2755)\nreturn os.stat('tool').st_mode & 0o2000",
        ),
        a(
            "make a set-user-id program as it is created",
            ("seccomp",),
            "os.close(os.open('tool', os.O_CREAT | os.O_WRONLY, 0o4755))\nreturn os.stat('tool').st_mode & 0o4000",
        ),
        a(
            "walk out through an inherited directory",
            ("landlock",),
            "return os.read(os.open('../secret', os.O_RDONLY, dir_fd=int(E['DIRECTORY_FD'])), 9)",
        ),
        a(
            "reopen an inherited log for writing",
            ("landlock",),
            "os.close(os.open(f\"/proc/self/fd/{E['LOG_FD']}\", os.O_WRONLY))\nreturn True",
        ),
        a(
            "connect to a port of the machine",
            ("network",),
            "return socket.create_connection(('127.0.0.1', int(E['PORT'])), 2)",
        ),
        a(
            "send a datagram to the machine",
            ("network",),
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b'hello', ('127.0.0.1', int(E['UDP_PORT'])))\ns.settimeout(1)\nreturn s.recv(9)",
        ),
        a("connect to a socket by its path", ("mounts",), "return unix(E['SOCKET'])"),
        a("connect to a socket by its abstract name", ("network", "landlock"), "return unix('\\0' + E['ABSTRACT'])"),
        a(
            "open a socket to the hypervisor",
            ("seccomp",),
            "return socket.socket(40, socket.SOCK_STREAM)",
            control="feature",
        ),
        a(
            "open a packet socket",
            ("seccomp", "capabilities"),
            "return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
            control="root",
        ),
        a(
            "open a socket to the kernel's ciphers",
            ("seccomp",),
            "return socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
            control="feature",
        ),
        a(
            "open a netlink socket to the firewall",
            ("seccomp",),
            "return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)",
            control="feature",
        ),
        a("signal a process outside", ("processes",), "os.kill(int(E['SIBLING']), 0)\nreturn True"),
        a(
            "find a token in any environment",
            ("processes", "environment"),
            "return [pid for pid in E['PIDS'].split() or os.listdir('/proc') if pid.isdigit() and E['HALF'] + E['OTHER_HALF'] in environ(pid)]",
        ),
        a(
            "read another's memory file",
            ("processes",),
            "os.close(os.open(f\"/proc/{E['SIBLING']}/mem\", os.O_RDWR))\nreturn environ(E['SIBLING'])",
        ),
        a(
            "write the memory of process 1",
            ("landlock", "mounts"),
            "os.close(os.open(f\"/proc/{E['INIT']}/mem\", os.O_RDWR))\nreturn True",
        ),
        a("read memory by system call", ("seccomp",), "return peek(os.getpid())"),
        a("trace a child", ("seccomp",), "return call(101 if X86 else 117, 0, 0, 0, 0) == 0"),
        a(
            "attach shared memory of another",
            ("ipc",),
            "libc.shmat.restype = ctypes.c_void_p\nsegment = libc.shmget(int(E['SHM_KEY']), 0, 0)\nreturn segment != -1",
        ),
        a("open a message queue of another", ("ipc",), "return libc.mq_open(E['QUEUE'].encode(), os.O_RDONLY) >= 0"),
        a("read another's /dev/shm", ("mounts",), "return open(E['DEV_SHM']).read()"),
        a("read another's /tmp", ("mounts",), "return open(E['TMP_FILE']).read()"),
        a(
            "set up io_uring",
            ("seccomp",),
            "return call(425, 1, ctypes.create_string_buffer(120)) >= 0",
            control="feature",
        ),
        a(
            "load a BPF program",
            ("seccomp", "capabilities"),
            "return call(321 if X86 else 280, 0, (ctypes.c_uint32 * 32)(1, 4, 4, 1), 128) >= 0",
            control="root",
        ),
        a(
            "use the kernel's key store",
            ("seccomp",),
            "return call(250 if X86 else 219, 0, -3, 1) > 0",
            control="feature",
        ),
        a(
            "make a user namespace",
            ("seccomp", "user"),
            "return apart(lambda: libc.unshare(0x10000000) == 0)",
            control="feature",
        ),
        a("make a user namespace by clone", ("seccomp", "user"), "return cloned(0x10000000 | 17)", control="feature"),
        a(
            "mount",
            ("capabilities", "seccomp"),
            "return libc.mount(b'x', E['BESIDE'].encode(), b'tmpfs', 0, None) == 0",
            control="root",
        ),
        a(
            "make a mount writable again",
            ("capabilities", "seccomp", "landlock"),
            "return libc.mount(None, E['MASK'].encode(), None, 0x1020, None) == 0",
            control="root",
        ),
        a(
            "take a mask away",
            ("capabilities", "seccomp", "landlock"),
            "return libc.umount2(E['MASK'].encode(), 2) == 0",
            control="root",
        ),
        a(
            "change the root",
            ("capabilities", "seccomp"),
            "return apart(lambda: libc.chroot(E['BESIDE'].encode()) == 0)",
            control="root",
        ),
        a(
            "enter a namespace",
            ("processes", "seccomp", "capabilities"),
            "return libc.setns(os.open(f\"/proc/{E['SIBLING']}/ns/uts\", os.O_RDONLY), 0) == 0",
            control="root",
        ),
        a("open a file by its handle", ("seccomp", "capabilities"), "return handle(E['SECRET'])", control="root"),
        a(
            "change a setting of the kernel",
            ("mounts", "user"),
            "os.close(os.open(E['SETTING'], os.O_WRONLY))\nreturn True",
        ),
        a(
            "rename the machine",
            ("ipc", "capabilities", "seccomp"),
            "return libc.sethostname(socket.gethostname().encode(), len(socket.gethostname())) == 0",
            control="root",
        ),
        a(
            "type into a terminal",
            ("seccomp", "capabilities"),
            "import fcntl, pty, termios\nour, their = pty.openpty()\nfcntl.ioctl(our, termios.TIOCSTI, b'x')\nreturn True",
            control="root",
        ),
        a(
            "regain capabilities",
            ("capabilities",),
            "return any(int(line.split()[1], 16) for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapPrm', 'CapBnd')))",
            control="always",
        ),
        a("gain privileges by executing", ("no-new-privileges",), "return libc.prctl(39, 0, 0, 0, 0) == 0"),
        a(
            "make a device",
            ("capabilities", "landlock"),
            "os.mknod('device', 0o20600, os.makedev(1, 3))\nreturn True",
            control="root",
        ),
        a("start processes without end", ("limits", "pids"), "return forked(100) == 100"),
        a("start threads without end", ("limits", "pids"), "return threads(100) == 100"),
        a("take memory in one process", ("limits", "memory"), "return len(bytearray(300 << 20))"),
        a("take memory in many processes", ("memory",), "return among(4, 100 << 20)", group=True),
        a(
            "take memory that is shared",
            ("memory",),
            "memory = mmap.mmap(-1, 300 << 20)\n[memory.write(bytes(1 << 20)) for _ in range(300)]\nreturn True",
            group=True,
        ),
        a("fill /tmp", ("limits",), "return filled(E['TMP_NAME'], 20)"),
        a("fill /dev/shm", ("limits",), "return filled(E['SHM_NAME'], 20)"),
        a("write a file without end", ("limits",), "return open('big', 'wb', 0).write(bytes(3 << 20)) == 3 << 20"),
        a("open files without end", ("limits",), "return len([os.open('/dev/null', os.O_RDONLY) for _ in range(300)])"),
        a(
            "raise its own limits",
            ("limits", "capabilities"),
            "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\nreturn resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 300",
        ),
        a(
            "become another user",
            ("capabilities", "user"),
            "return apart(lambda: os.setuid(0) is None)",
            control="root",
        ),
    ]


def _node() -> list[Attack]:
    def a(name: str, layers: tuple[str, ...], code: str, control: Control = "always") -> Attack:
        return Attack(name, layers, code, "node", control)

    return [
        a("read a file by its path", ("mounts",), "return fs.readFileSync(E.SECRET, 'utf8')"),
        a("read a file by a child process", ("mounts",), "return child.execFileSync('cat', [E.SECRET]).toString()"),
        a("write beside the workspace", ("mounts",), "fs.writeFileSync(E.BESIDE + '/made', ''); return true"),
        a(
            "connect to a port of the machine",
            ("network",),
            "return await connected({ port: +E.PORT, host: '127.0.0.1' })",
        ),
        a("connect to a socket by its path", ("mounts",), "return await connected({ path: E.SOCKET })"),
        a("signal a process outside", ("processes",), "return process.kill(+E.SIBLING, 0)"),
        a(
            "make a set-user-id program",
            ("seccomp",),
            "fs.writeFileSync('tool', ''); fs.chmodSync('tool', 0o4755); return true",
        ),
        a("write a protected file", ("workspace",), "fs.appendFileSync('.git/config', ''); return true"),
        a("make a file of settings", ("workspace",), "fs.writeFileSync('.mcp.json', ''); return true"),
        a("write a file without end", ("limits",), "fs.writeFileSync('big', Buffer.alloc(3 << 20)); return true"),
        a(
            "fill /tmp",
            ("limits",),
            "for (let n = 0; n < 20; n++) fs.writeFileSync(`${E.TMP_NAME}-${n}`, Buffer.alloc(1 << 20))\n for (let n = 0; n < 20; n++) fs.unlinkSync(`${E.TMP_NAME}-${n}`)\n return true",
        ),
        a("take memory in one process", ("limits", "memory"), "return Buffer.alloc(300 << 20, 1).length"),
        a(
            "start processes without end",
            ("limits", "pids"),
            "const all = Array.from({ length: 60 }, () => child.spawn('sleep', ['30']).on('error', () => {}))\n all.forEach((each) => each.pid && each.kill('SIGKILL')); return all.every((each) => each.pid)",
        ),
    ]


def _bash() -> list[Attack]:
    def a(name: str, layers: tuple[str, ...], code: str, control: Control = "always") -> Attack:
        return Attack(name, layers, code, "bash", control)

    return [
        a("read a file by its path", ("mounts",), 'cat "$SECRET"'),
        a("write beside the workspace", ("mounts",), ': > "$BESIDE/made"'),
        a("connect to a port of the machine", ("network",), 'exec 9<>"/dev/tcp/127.0.0.1/$PORT"'),
        a("signal a process outside", ("processes",), 'kill -0 "$SIBLING"'),
        a(
            "find a token in any environment",
            ("processes", "environment"),
            'cat /proc/${PIDS:-[0-9]*}/environ | grep -aq "$HALF$OTHER_HALF"',
        ),
        a("mount", ("capabilities", "seccomp"), 'mount -t tmpfs none "$BESIDE"', "root"),
        a("make a user namespace", ("seccomp", "user"), "unshare --user true", "feature"),
        a(
            "enter another's namespaces",
            ("processes", "capabilities"),
            'nsenter --target "$SIBLING" --uts true',
            "root",
        ),
        a("raise its own limits", ("limits", "capabilities"), "ulimit -S -n 300"),
        a("write a protected file", ("workspace",), ": >> .git/config"),
        a("make a directory of settings", ("workspace",), "mkdir -p .husky && : > .husky/pre-commit"),
        a("make a set-user-id program", ("seccomp",), ": > tool && chmod u+s tool"),
        a("write a file without end", ("limits",), "head -c 3145728 /dev/zero > big"),
        a(
            "take memory in one process",
            ("limits", "memory"),
            "all=$(head -c 314572800 /dev/zero | tr '\\0' x); test ${#all} = 314572800",
        ),
        a("open files without end", ("limits",), 'for n in $(seq 10 300); do eval "exec $n</dev/null" || return; done'),
    ]


ATTACKS = [*_python(), *_node(), *_bash()]
