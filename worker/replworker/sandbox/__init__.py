"""Sandbox around an interpreter. What it prevents: docs/security.md; why it is built so: docs/decisions/0015.

In a broker, once::

    machine = detect_machine()                          # machine.py: facts, sent to workers as data
    remove_orphans(machine.cgroups)                     # cgroup.py: groups of dead workers; also after each worker's
                                                        # death, since a killed one cannot clean up
    report = probe(policy, machine, interpreter, env)   # probe.py: 0.2 s; repeat when the settings change
    if not report.ok: refuse sessions with `sandbox-unavailable` and report.text()
    report.layers, report.missing                       # for `describe`, `info`, `doctor`

For a request, ``tighten(policy, request)`` (replwire.policy) raises PolicyExceeded. A policy that differs from the
broker's in anything but its workspace paths needs a worker pool and a probe of its own. `profile: off` does not use
this package: no plan, no probe, a bare InterpreterCommand.

In a worker, while it is single-threaded::

    plan = prepare_plan(policy, machine, runtime, interpreter, env, slot=number)  # SandboxUnavailable, DirectoryRefused
    sandbox = BubblewrapSandbox(plan)                                             # raises OSError
    process = InterpreterProcess(build_command(runtime, interpreter, plan.env, sandbox))

`slot` gives each session of a root broker its own host user: any number unique among live sessions. At the assignment,
before the interpreter is told its directory (replworker.session_sandbox)::

    directory = check_directory(policy, cwd, home)      # workspace.py: the real path; raises DirectoryRefused
    error, sockets = sandbox.attach(policy, directory)  # 3 to 10 ms; None on success

If `report.layers["late-workspace"]` is False, a session with a directory starts cold, with
``prepare_plan(..., directory=directory)``, and not from the pool. A sandbox is used once: a second `attach` fails.
`process.poll_exit()` returns "out of memory: 1024 MiB (sandbox.memory-bytes)" if a control group enforced its limit;
`sandbox.close()` cleans up in a worker that lives on.

`plan` is pure; `machine`, `runtime_paths`, `workspace` and `cgroup.find_cgroup_root` read; `mounts`, `private_mounts`
and `mount_helper` mount; `sandbox_init` and `selftest` run inside, with the standard library only.
"""
