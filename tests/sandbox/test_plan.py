"""From a policy and a machine to a command line: pure, so it is checked without starting anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replwire.policy import Policy, SandboxLimits
from replworker.sandbox import landlock, rlimits
from replworker.sandbox.cgroup import CgroupRoot
from replworker.sandbox.machine import Machine
from replworker.sandbox.plan import FIRST_TEXT_FD, SCRATCH, SandboxPlan, SandboxUnavailable, build_plan, environment
from replworker.sandbox.runtime_paths import RuntimePaths
from replworker.sandbox.workspace import SandboxMount

PLAIN = Machine(
    uid=1000,
    gid=1000,
    admin=False,
    arch="x86_64",
    bwrap="/usr/bin/bwrap",
    bwrap_version=(0, 8, 0),
    bwrap_problem=None,
    landlock_abi=7,
    seccomp=True,
    late_mounts=True,
    cgroups=CgroupRoot(),
    top_links={"/bin": "usr/bin"},
    top_directories=("/lib",),
    etc=("/etc/ssl",),
    etc_network=("/etc/resolv.conf",),
)
ROOT = replace(PLAIN, uid=0, gid=0, admin=True)
NEEDS = RuntimePaths(("/home/ada/venv",), (("/home/ada/python", "venv/bin/python"),))


def planned(
    policy: Policy | None = None, machine: Machine = PLAIN, needs: RuntimePaths = NEEDS, **more: Any
) -> SandboxPlan:
    return build_plan(
        policy or Policy(),
        machine,
        needs,
        runtime=more.pop("runtime", "python"),
        python="/home/ada/venv/bin/python",
        inner="/x/sandbox_init.py",
        env={"PATH": "/bin", "SSH_AUTH_SOCK": "/s"},
        **more,
    )


def pairs(found: SandboxPlan, option: str) -> list[tuple[str, str]]:
    at = [index for index, word in enumerate(found.options) if word == option]
    return [(found.options[index + 1], found.options[index + 2]) for index in at]


def test_every_namespace_and_no_capability() -> None:
    options = planned().options
    for option in ("user", "pid", "net", "ipc", "uts", "cgroup-try"):
        assert f"--unshare-{option}" in options
    assert options[options.index("--cap-drop") + 1] == "ALL"
    assert {"--die-with-parent", "--new-session", "--disable-userns"} <= set(options)


def test_the_hosts_network_is_given_only_when_asked_for() -> None:
    assert "--unshare-net" not in planned(Policy(network="host")).options
    assert ("/etc/resolv.conf", "/etc/resolv.conf") in pairs(planned(Policy(network="host")), "--ro-bind")
    assert ("/etc/resolv.conf", "/etc/resolv.conf") not in pairs(planned(), "--ro-bind")


def test_nothing_is_bound_for_writing_but_what_was_granted() -> None:
    assert pairs(planned(), "--bind") == []
    granted = planned(granted=[SandboxMount("/data", "writable"), SandboxMount("/data/.git", "readable")])
    assert pairs(granted, "--bind") == [("/data", "/data")]
    assert granted.options.index("/data") < granted.options.index("/data/.git")


def test_what_lies_in_tmp_is_mounted_after_tmp_and_before_the_root_is_closed() -> None:
    options = list(planned(needs=RuntimePaths(("/tmp/venv",))).options)
    assert options.index("/tmp") < options.index("/tmp/venv") < options.index("--remount-ro")
    assert options[-2:] == ["--chdir", SCRATCH]


def test_root_dev_and_proc_end_read_only() -> None:
    options = planned().options
    closed = [options[at + 1] for at, word in enumerate(options) if word == "--remount-ro"]
    assert closed == ["/dev", "/proc", "/"]


def test_each_own_file_system_has_its_size() -> None:
    options = planned(Policy(limits=SandboxLimits(tmp_bytes=1 << 20))).options
    sized = [
        options[at + 2 : at + 4]
        for at, word in enumerate(options)
        if word == "--size" and options[at + 1] == str(1 << 20)
    ]
    assert sized == [("--tmpfs", "/dev/shm"), ("--tmpfs", "/tmp")]
    assert options.count("--tmpfs") == 2


def test_made_files_have_the_descriptors_that_their_contents_come_on() -> None:
    found = planned()
    files = pairs(found, "--ro-bind-data")
    assert [int(fd) for fd, _ in files] == list(range(FIRST_TEXT_FD, FIRST_TEXT_FD + len(found.texts)))
    by_path = {path: found.texts[int(fd) - FIRST_TEXT_FD] for fd, path in files}
    assert "localhost" in by_path["/etc/hosts"]
    assert "repl:x:1000" in by_path["/etc/passwd"]


def test_symlinks_of_the_runtime_and_of_the_system_are_made_again() -> None:
    assert pairs(planned(), "--symlink") == [("usr/bin", "/bin"), ("venv/bin/python", "/home/ada/python")]


def test_reading_the_whole_host_still_hides_and_denies_sockets() -> None:
    found = planned(
        Policy(read="host"),
        hidden=[SandboxMount("/home/ada/.ssh", "hidden-directory"), SandboxMount("/home/ada/.netrc", "hidden-file")],
    )
    assert ("/", "/") in pairs(found, "--ro-bind")
    assert "/home/ada/.ssh" in found.options
    assert ("/dev/null", "/home/ada/.netrc") in pairs(found, "--ro-bind")
    assert found.filter != planned().filter


def test_abstract_sockets_of_the_hosts_network_are_stopped_by_landlock_or_else_by_the_filter() -> None:
    new, old = PLAIN, replace(PLAIN, landlock_abi=landlock.SCOPE_ABI - 1)
    assert planned(Policy(network="host"), new).filter == planned().filter
    assert planned(Policy(network="host"), old).filter != planned().filter


def test_a_root_broker_runs_sessions_as_others_each_as_its_own() -> None:
    first, second = (planned(machine=ROOT, slot=slot) for slot in (1, 2))
    assert first.run_as != second.run_as
    assert 0 not in (first.run_as, second.run_as)
    assert first.open_way == NEEDS.paths
    assert planned().run_as is None


@pytest.mark.parametrize(
    ("machine", "cause", "fix"),
    [
        (
            replace(PLAIN, bwrap=None, bwrap_problem="there is no /usr/bin/bwrap"),
            "there is no /usr/bin/bwrap",
            "apt-get install bubblewrap",
        ),
        (replace(PLAIN, bwrap_version=(0, 4, 1)), "bubblewrap 0.4.1 is too old", "install 0.7 or later"),
        (replace(PLAIN, arch="riscv64", seccomp=False), "riscv64", "x86_64 or aarch64"),
        (replace(ROOT, admin=False), "root without CAP_SYS_ADMIN", "ordinary user"),
        (replace(ROOT, late_mounts=False), "Linux 5.12", "ordinary user"),
    ],
)
def test_what_a_machine_lacks_is_said_with_what_would_mend_it(machine: Machine, cause: str, fix: str) -> None:
    with pytest.raises(SandboxUnavailable) as caught:
        planned(machine=machine)
    assert cause in caught.value.cause
    assert fix in caught.value.fix


def test_an_older_bubblewrap_is_not_asked_for_what_it_lacks() -> None:
    assert "--disable-userns" not in planned(machine=replace(PLAIN, bwrap_version=(0, 7, 0))).options


def test_a_directory_from_the_start_is_where_the_session_begins() -> None:
    found = planned(workspace=[SandboxMount("/work/p", "writable"), SandboxMount("/work/p/.envrc", "readable")])
    assert found.options[-1] == "/work/p"
    assert found.late is False
    assert planned().late is True
    assert planned(machine=replace(PLAIN, late_mounts=False)).late is False


def test_the_environment_has_a_home_of_its_own_and_no_agents() -> None:
    env = environment(
        {"HOME": "/home/ada", "LANG": "C", "XDG_RUNTIME_DIR": "/run/user/1", "DBUS_SESSION_BUS_ADDRESS": "x"},
        Policy(network="host"),
    )
    assert env == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C",
        "HOME": "/tmp/home",
        "USER": "repl",
        "LOGNAME": "repl",
        "TMPDIR": "/tmp",
    }


def test_package_tools_do_not_try_a_refused_host_again() -> None:
    retries = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", "npm_config_fetch_retries": "0"}
    for network in ("none", "list"):
        assert environment({}, Policy(network=network)).items() >= retries.items()
        assert environment({"PIP_RETRIES": "3"}, Policy(network=network))["PIP_RETRIES"] == "3"


def test_a_list_of_hosts_leaves_the_network_empty_and_names_a_resolver() -> None:
    made = planned(Policy(network="list", allowed_hosts=["pypi.org"]))
    assert "--unshare-net" in made.options
    assert "nameserver 127.0.0.1\n" in made.texts
    assert ("/etc/resolv.conf", "/etc/resolv.conf") not in pairs(made, "--ro-bind")


def test_python_meets_its_memory_limit_before_its_session_is_ended() -> None:
    usage = SandboxLimits(memory_bytes=800 << 20)
    limits = {grouped: dict(rlimits.limits(usage, "python", grouped=grouped)) for grouped in (True, False)}
    assert limits[True][2] == 700 << 20  # RLIMIT_DATA
    assert limits[False][2] == 700 << 20
    assert 2 not in dict(rlimits.limits(usage, "node", grouped=True))
    assert dict(rlimits.limits(usage, "node", grouped=False))[2] == 800 << 20


def test_landlock_asks_a_kernel_only_for_what_it_knows() -> None:
    assert landlock.build_rules(0, writable=True).handled == 0
    assert landlock.build_rules(1, writable=True).handled == (1 << 13) - 1
    assert landlock.build_rules(2, writable=True).scoped == 0
    newest = landlock.build_rules(landlock.SCOPE_ABI, writable=True)
    assert newest.scoped == landlock.SCOPE_ABSTRACT | landlock.SCOPE_SIGNAL
    for abi in range(1, 8):
        for writable in (True, False):
            found = landlock.build_rules(abi, writable=writable)
            assert all(right & ~found.handled == 0 for _, right in found.paths)


def test_a_read_only_session_has_a_root_that_landlock_lets_nobody_write() -> None:
    rights = dict(landlock.build_rules(7, writable=False).paths)
    assert rights["/"] & 2 == 0
    assert rights["/tmp"] & 2
