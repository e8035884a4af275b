"""The sandbox around an interpreter. What it holds and what not: docs/security.md; why so: docs/decisions/0015.

Once in a broker::

    machine = look()                                    # machine.py: facts, as data that can be sent to workers
    sweep(machine.cgroups)                              # cgroup.py: what workers of a dead broker left; also after
                                                        # each worker's death, since a killed one cannot tidy up
    report = probe(policy, machine, interpreter, env)   # probe.py: 0.1 s; run again when the settings change
    if not report.ok: refuse sessions with `sandbox-unavailable` and report.text()
    report.layers, report.missing                       # for `describe`, `info`, `doctor`

For a request: ``tighten(policy, request)`` (replwire.policy) raises Loosens. A policy that differs from the broker's in
anything but its paths for the workspace needs a pool key, and a probe, of its own. `profile: off` is not for this
package: no plan, no probe, a bare Command.

In a worker, before it has a second thread::

    plan = prepare(policy, machine, runtime, interpreter, env, slot=number)   # prepare.py; raises Unavailable, Refused
    confined = Confined(plan)                                                 # confined.py; raises OSError
    child = Child(pick(runtime, interpreter, plan.env, confined))             # runtimes: as ever from here on

`slot` gives each session of a root broker a host user of its own: any number that live sessions do not share. At the
claim, before the interpreter is told its folder (replworker.session)::

    folder = check(policy, cwd, home)                   # workspace.py: the real path; raises Refused
    error = confined.attach(policy, folder)             # 3 to 10 ms; None when it is there
    claim the interpreter with cwd=folder, or without one, when the session has none

Where `report.layers["late-workspace"]` is False, a session with a folder starts cold, with
``prepare(..., folder=folder)``, and is not from the pool. A slot is used once: the second `attach` fails.
`child.died()` says "out of memory: 1024 MB" where a control group held; `confined.close()` tidies up when a worker
lives on.

The parts: `plan` is pure; `machine`, `reach`, `workspace` and `cgroup.find` read; `mounts`, `stage` and `usher` mount;
`inner` and `canary` run inside, with nothing but a standard library.
"""
