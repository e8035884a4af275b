"""Package actions of a session: one at a time, as the eval that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from replwire.limits import MIB, Limits
from replwire.ops import Env
from replwire.packages import InstallerSettings
from replwire.policy import Policy
from replworker.descriptor_watch import DescriptorWatch
from replworker.egress.client import EgressClient
from replworker.egress.listeners import plan_listeners
from replworker.interpreter import Interpreter
from replworker.output import Stream
from replworker.packages import report
from replworker.packages.changes import (
    PackageChange,
    PackageRefused,
    environment_packages,
    excluded_packages,
    normalize,
)
from replworker.packages.ecosystems import Ecosystem, NodeEcosystem, PythonEcosystem
from replworker.packages.index_settings import redact
from replworker.packages.job import InstallerJob, InstallerPlace
from replworker.packages.layers import PackageLayer, PackagePaths, tree_bytes
from replworker.packages.requirement_files import InvalidRequirementFile
from replworker.packages.tool_process import ToolProcess
from replworker.packages.tools import InstallRequest, PackageTool
from replworker.runtimes import frames
from replworker.sandbox.plan import SandboxUnavailable

_OUTPUT_KEPT = 8192  # bytes of the tool's output, for the reason of a failure
_REFUSALS = (PackageRefused, InvalidRequirementFile)
_START_ERRORS = (OSError, ValueError, SandboxUnavailable)

WriteOutput = Callable[[Stream, str], None]
OnEnd = Callable[[str | None], None]  # why it failed, or None


class PackageSettings(NamedTuple):
    """Directories of a worker's packages, and settings of their installer.

    Attributes:
        paths: the broker's paths
        installer: settings of installers
        place: where installers run
        mount: directory of what this worker's interpreter sees; None if it could not be created
        seen_as: where it sees that
        journal: path of the broker's journal
        executable: the interpreter
        named: a client chose the interpreter
    """

    paths: PackagePaths
    installer: InstallerSettings
    place: InstallerPlace
    mount: str | None
    seen_as: str
    journal: str
    executable: str
    named: bool


@dataclass(slots=True)
class _Run:
    """A package action that has begun."""

    request: Env
    limits: Limits
    write: WriteOutput
    on_end: OnEnd
    environment: dict[str, str] = field(default_factory=dict)
    ecosystem: Ecosystem | None = None
    change: PackageChange | None = None
    job: InstallerJob | None = None
    tool: PackageTool | None = None
    process: ToolProcess | None = None
    network: EgressClient | None = None
    failure: str | None = None
    output: str = ""
    missing: set[str] = field(default_factory=set)  # packages of the environment that do not fit


class PackageRunner:
    """Runs package actions of one session."""

    def __init__(self, interpreter: Interpreter, watch: DescriptorWatch, settings: PackageSettings) -> None:
        self._interpreter = interpreter
        self._watch = watch
        self._settings = settings
        self._layer: PackageLayer | None = None
        self._process: ToolProcess | None = None
        self._count = 0
        self._session = ""

    def assign(self, session: str, packages_of: str | None, *, shown: bool = True) -> str | None:
        """Return the directory of the session's packages for its interpreter, None if it has none.

        With `shown` false the interpreter sees them already: it is a copy of one of the session `packages_of`.

        Raises:
            OSError: they cannot be shown to it
        """
        settings, self._session = self._settings, session
        if settings.mount is None:
            return None
        self._layer = layer = PackageLayer(
            settings.paths, session, settings.executable, settings.mount, settings.seen_as
        )
        if packages_of is not None:
            layer.copy_from(settings.paths, packages_of, settings.journal)
        return layer.show() if shown else None

    def start(self, request: Env, limits: Limits, write: WriteOutput, on_end: OnEnd) -> int:
        """Begin an action; `on_end` is called exactly once. Return the number of its frame."""
        number = self._interpreter.next_number()
        run = _Run(request, limits, write, on_end)
        if self._layer is None or not self._interpreter.supports("packages"):
            why = "the broker's state directory could not be written" if self._layer is None else "the runtime has none"
            on_end(f"this session can have no packages: {why}")
            return number
        file = (request.path or "") if request.action == "instantiate" else None
        self._interpreter.request(frames.PackagesFrame(number, file=file), lambda event: self._on_listed(run, event))
        return number

    def show_again(self) -> None:
        """Have the interpreter import from the newest generation, after it has gone back to a moment before that."""
        if self._layer is not None and (path := self._layer.show()) is not None:
            frame = frames.PackagesFrame(self._interpreter.next_number(), path)
            self._interpreter.request(frame, lambda _: None)

    @property
    def is_installing(self) -> bool:
        """True while an installer runs."""
        return self._process is not None

    def cancel(self) -> None:
        """Kill the installer, if one runs; its action fails."""
        if self._process is not None:
            self._process.kill()

    # --- before the installer ---

    def _on_listed(self, run: _Run, event: frames.FrameEvent) -> None:
        assert isinstance(event, frames.PackagesListedFrame)
        assert self._layer is not None
        run.environment = environment_packages(event.distributions)
        try:
            if event.error is not None:
                raise PackageRefused(event.error)
            ecosystem = run.ecosystem = self._ecosystem()
            if run.request.action == "status":
                run.write("out", report.status_text(self._layer.record, run.environment, ecosystem.key))
                run.on_end(None)
                return
            listed = None if event.file is None else ecosystem.parse_file(event.file, event.text)
            run.change = ecosystem.plan(run.request, self._layer.record, listed)
            if run.request.action == "add" and not self._has_more_to_do(run, run.change):
                return
            self._start_installer(run, run.change)
        except _REFUSALS as error:
            self._end(run, str(error))
        except _START_ERRORS as error:
            self._end(run, f"the installer could not be started: {error}")

    def _has_more_to_do(self, run: _Run, change: PackageChange) -> bool:
        """Leave out what is there already; end the action and return False if nothing is left."""
        assert self._layer is not None
        assert run.ecosystem is not None
        run.change, present = run.ecosystem.leave_out_present(change, self._layer.record, run.environment)
        if present:
            run.write("out", f"already there: {', '.join(present)}\n")
        if run.change.install:
            return True
        self._layer.save_requirements(list(run.change.requirements.values()))
        self._end(run, None)
        return False

    @property
    def _python_version(self) -> str:
        """Version of the session's Python, as it says itself."""
        assert self._interpreter.ready is not None
        parts = self._interpreter.ready.version.split(".")
        if len(parts) < 3 or not all(part.isdecimal() for part in parts[:2]):
            raise PackageRefused(f"the interpreter reports no version of Python: {self._interpreter.ready.version!r}")
        return ".".join(parts)

    def _ecosystem(self) -> Ecosystem:
        assert self._interpreter.ready is not None
        if self._interpreter.ready.runtime == "node":
            return NodeEcosystem(self._settings.executable)
        return PythonEcosystem(self._python_version)

    def _start_installer(self, run: _Run, change: PackageChange) -> None:
        assert self._layer is not None
        assert run.ecosystem is not None
        tool = run.ecosystem.find_tool(self._settings.installer)
        self._count += 1
        job = run.job = InstallerJob(self._settings.paths, self._settings.installer, self._count)
        if not tool.incremental:
            change = PackageChange(change.requirements, list(change.requirements.values()), True, [], change.keep)
        job.begin(None if change.rebuild else self._layer.current)
        tool.prepare(job.target, [*change.requirements.values()])
        if change.install:
            self._start_tool(run, change, job, tool)
        else:
            self._publish(run)

    def _start_tool(self, run: _Run, change: PackageChange, job: InstallerJob, tool: PackageTool) -> None:
        run.tool = tool
        command = job.command(self._argv(run, change, job, tool), tool, self._settings.place)
        process = run.process = self._process = ToolProcess(command, waits=job.sandbox is not None)
        self._watch.add(process.output, lambda: self._read_output(run, process))
        self._watch.add(process.pidfd, lambda: self._on_exit(run, process))

    def _argv(self, run: _Run, change: PackageChange, job: InstallerJob, tool: PackageTool) -> list[str]:
        keep = "".join(f"{name}=={version}\n" for name, version in change.keep.items())
        excludes = "".join(f"{name}\n" for name in excluded_packages(run.environment, change, run.missing))
        named = self._settings.named and isinstance(run.ecosystem, PythonEcosystem)
        version = ".".join(self._python_version.split(".")[:2]) if named else None
        return tool.install(
            InstallRequest(
                target=job.target,
                packages=change.install,
                python_version=version,
                upgrades=change.upgrades,
                constraints=job.write("keep.txt", keep) if keep else None,
                excludes=job.write("environment.txt", excludes) if excludes else None,
                builds=self._settings.installer.builds,
                dry_run=run.request.action == "resolve",
            )
        )

    # --- the installer ---

    def _read_output(self, run: _Run, process: ToolProcess) -> None:
        while data := process.read():
            if process.is_waiting:
                data = data[1:]  # the line that says so
                self._open_network(run, process)
            text = redact(data.decode("utf-8", "replace"))
            run.output = (run.output + text)[-_OUTPUT_KEPT:]
            run.write("err", text)
        if data == b"":
            self._watch.remove(process.output)

    def _open_network(self, run: _Run, process: ToolProcess) -> None:
        """Let the tool reach the hosts of the index, and begin; kill it if that cannot be."""
        assert run.job is not None
        assert run.job.sandbox is not None
        listeners = plan_listeners(run.job.rules)
        attached = run.job.sandbox.attach(Policy(), None, None, listeners)
        network = EgressClient(self._settings.place.egress)
        try:
            if attached.error is not None:
                raise OSError(attached.error)
            network.serve(self._session, run.job.rules, listeners, attached.sockets)
        except OSError as error:
            run.failure = f"the installer has no network: {error.strerror or error}"
            network.close()
            process.kill()
            return
        run.network = network
        process.release()

    def _on_exit(self, run: _Run, process: ToolProcess) -> None:
        self._read_output(run, process)
        self._watch.remove(process.output)
        self._watch.remove(process.pidfd)
        code = process.close()
        self._process = None
        refused = []
        if run.network is not None:
            refused = run.network.receive()
            run.network.close()
            run.network = None
        for reason in refused:
            run.write("err", f"network: {reason}\n")
        if run.failure is not None:
            self._end(run, run.failure)
        elif code != 0 and refused:
            self._end(run, f"nothing has changed: {refused[0]}")
        elif code != 0:
            self._end(run, report.failure_reason(run.output, code))
        elif run.request.action == "resolve":
            self._end(run, None)
        else:
            self._on_installed(run)

    def _on_installed(self, run: _Run) -> None:
        """Publish what is installed, unless packages of the environment do not fit it and have to be installed too."""
        assert run.job is not None
        assert run.change is not None
        assert run.tool is not None
        assert run.ecosystem is not None
        try:
            missing = run.ecosystem.find_missing(run.job.target, run.environment) - run.missing
            missing -= {normalize(name) for name in run.ecosystem.installed(run.job.target)}
            if missing and run.tool.incremental:
                run.missing |= missing
                self._start_tool(run, run.change, run.job, run.tool)
            else:
                self._publish(run)
        except _START_ERRORS as error:
            self._end(run, f"the packages could not be published: {error}")

    # --- after the installer ---

    def _publish(self, run: _Run) -> None:
        """Publish the next generation and have the interpreter import from it.

        Raises:
            OSError: it cannot be published
        """
        assert run.job is not None
        assert run.change is not None
        assert self._layer is not None
        assert run.ecosystem is not None
        before, most = self._layer.record, run.limits.max_package_bytes
        pins = run.ecosystem.installed(run.job.target)
        size = tree_bytes(run.job.target)
        if size > most and size > before.bytes:
            text = f"the session's packages would have {size // MIB} MB (limits.max-package-bytes = {most})"
            self._end(run, f"{text}; nothing has changed")
            return
        requirements = list(run.change.requirements.values())
        if (requirements, pins) == (before.requirements, before.pins):
            run.write("out", report.NOTHING_CHANGED)
            self._end(run, None)
            return
        difference = report.compare(before.pins, pins, run.environment, run.job.target)
        path = self._layer.publish(run.job.target, requirements, pins, size, self._settings.journal)
        frame = frames.PackagesFrame(self._interpreter.next_number(), path, list(difference.modules))
        self._interpreter.request(frame, lambda event: self._on_in_use(run, difference, event))

    def _on_in_use(self, run: _Run, difference: report.Difference, event: frames.FrameEvent) -> None:
        assert isinstance(event, frames.PackagesListedFrame)
        if event.error is None:
            run.write("out", report.change_text(difference, event.imported))
        self._end(run, event.error)

    def _end(self, run: _Run, error: str | None) -> None:
        run.on_end(error)
        if run.job is not None:
            run.job.remove()
