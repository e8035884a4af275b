"""Extensions of a real broker, through its config file, the wire and the installed command."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ext_kit import SHOUT, config_entry, hook_source, write_extension
from kit import TIMEOUT_S, BrokerProcess, wait_until
from replctl import Client, ReplError
from replwire.replies import Approval

Start = Callable[..., BrokerProcess]
COMMAND = [sys.executable, "-m", "replctl"]
ASKS = hook_source("return RequireApproval('Delete?', 'it says rm') if 'rm' in q.code else None")


def _with(start: Start, tmp_path: Path, texts: dict[str, str], *settings: str, **more: Any) -> BrokerProcess:
    """A broker with these extensions, in this order."""
    paths = [write_extension(tmp_path, name, text) for name, text in texts.items()]
    return start(*settings, config="".join(config_entry(path=path) for path in paths) + more.pop("config", ""), **more)


def _cli(broker: BrokerProcess, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {
        **broker.environ,
        "REPLCTL_ENDPOINT": broker.endpoint,
        "REPLCTL_CONFIG": str(broker.directory / "config.toml"),
    }
    return subprocess.run([*COMMAND, *args], env=environ, capture_output=True, text=True, timeout=60, **more)


# --- hooks ---


def test_a_hook_sees_code_and_who_sends_it_and_its_word_counts(start: Start, tmp_path: Path) -> None:
    body = "return Block(f'{q.op} {q.name} {q.runtime} {q.agent} {sorted(q.analysis.imports)}') if 'bad' in q.code else None"
    broker = _with(start, tmp_path, {"guard": hook_source(body)})
    with broker.wire() as wire:
        assert wire.run("1+1", "s").value == "2"
        answer = wire.run("import bad", agent="ada")
        assert answer["status"] == ["done", "error", "hook-blocked"]
        assert answer["err"] == "hook guard/words: eval s python ada ['bad']; the code did not run"
        assert wire.run("2+2", "s").value == "4"


def test_hooks_are_asked_in_order_and_the_first_that_does_not_allow_decides(start: Start, tmp_path: Path) -> None:
    texts = {
        "one": hook_source("return Allow()"),
        "two": hook_source("return Block('two') if '2' in q.code else None"),
        "three": hook_source("return Block('three') if '3' in q.code else None"),
    }
    broker = _with(start, tmp_path, texts)
    with broker.wire() as wire:
        assert wire.run("1", "s").value == "1"
        assert "hook two/words: two" in wire.run("2 + 3")["err"]
        assert "hook three/words: three" in wire.run("3")["err"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise ValueError('oh')", "ValueError: oh"),
        ("return 'no verdict'", "TypeError: answered str"),
        ("return 1/0", "ZeroDivision"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return Block(3)", "TypeError: answered Block with a title or reason that is not a text"),
    ],
)
def test_a_hook_that_fails_blocks_and_is_told_and_the_rest_goes_on(
    start: Start, tmp_path: Path, body: str, why: str
) -> None:
    broker = _with(start, tmp_path, {"guard": hook_source(f"if 'bad' in q.code:\n            {body}")})
    with broker.wire() as wire, broker.wire() as listener:
        listener.send("subscribe", types=["extension/error"])
        assert listener.receive()["status"] == ["subscribed"]
        wire.run("1", "s")
        assert wire.run("bad")["status"] == ["done", "error", "hook-blocked"]
        event = listener.receive()["event"]
        assert (event["emitter"], event["contribution"]) == ("guard", "hook words")
        assert why in event["error"]
        assert wire.run("1+1", "s").value == "2"
    assert "extension guard: hook words" in broker.log_text()


def test_a_hook_that_does_not_come_back_blocks_its_eval_and_nobody_else(start: Start, tmp_path: Path) -> None:
    body = "while 'hang' in q.code and not pathlib.Path(q.code.split()[1]).exists():\n            time.sleep(0.01)"
    broker = _with(start, tmp_path, {"guard": hook_source(body)}, "limits.hook-time-ms=300")
    release = tmp_path / "release"
    with broker.wire() as wire, broker.wire() as other:
        wire.run("x = 1", "s")
        for _ in range(12):  # more than the broker leaves behind at once, though one may come just before it does
            answer = wire.run(f"hang {release}")
            assert answer["status"] == ["done", "error", "hook-blocked"], answer
            assert other.ask("ping")["status"] == ["done", "pong"]
        assert wire.run("1")["status"] == ["done", "error", "hook-blocked"], "too many are left behind"
        release.touch()
        wait_until(lambda: wire.run("x").value == "1", "evals run again when the hooks have come back")
    assert broker.stop() == 0


def test_what_was_blocked_because_it_waited_too_long_is_judged_no_more(start: Start, tmp_path: Path) -> None:
    judged, release = tmp_path / "judged", tmp_path / "release"
    body = f"""with open({str(judged)!r}, 'a') as file:
            file.write(q.code[:4] + ' ')
        while 'hang' in q.code and not pathlib.Path({str(release)!r}).exists():
            time.sleep(0.01)"""
    broker = _with(start, tmp_path, {"guard": hook_source(body)}, "limits.hook-time-ms=300")
    with broker.wire() as wire:
        for name in [wire.send("eval", session="s", code=code, if_missing="create") for code in ("hang", "late")]:
            assert "hook-blocked" in wire.answer(name)["status"]
        release.touch()
        assert wire.run("1+1", "s").value == "2"
    assert judged.read_text() == "hang 1+1 "


def test_many_evals_at_once_are_all_judged(start: Start, tmp_path: Path) -> None:
    broker = _with(start, tmp_path, {"guard": hook_source("return Block('odd') if int(q.code) % 2 else None")}, warm=0)
    with broker.wire() as wire:
        ids = [wire.send("eval", session="s", code=str(n), if_missing="create") for n in range(20)]
        ends = [wire.answer(each) for each in ids]
        assert ["error" in each["status"] for each in ends] == [bool(n % 2) for n in range(20)]
        assert wire.run("6", "s").value == "6"


def test_a_person_may_say_yes_to_what_a_hook_asks(start: Start, tmp_path: Path) -> None:
    broker = _with(start, tmp_path, {"guard": ASKS})
    asked: list[Approval] = []
    with Client(broker.endpoint, start=False) as client:
        with pytest.raises(ReplError) as refused:
            client.eval("rm = 1", "s")
        assert (refused.value.code, refused.value.exit) == ("approval-needed", 5)
        assert refused.value.approval is not None
        assert client.eval("rm = 2; rm", "s", on_approval=lambda each: asked.append(each) or True).value == "2"
        assert [(each.hook, each.title, each.reason) for each in asked] == [("guard/words", "Delete?", "it says rm")]
        with pytest.raises(ReplError):
            client.eval("rm = 3", "s", on_approval=lambda _: False)
        assert (
            client.eval("rm2 = 1; 5", "s", approval=refused.value.approval.id, on_approval=lambda _: True).value == "5"
        )


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 5), ("\n", 5), ("\x04", 5)])
def test_the_command_asks_who_sits_at_the_terminal(start: Start, tmp_path: Path, typed: str, code: int) -> None:
    broker = _with(start, tmp_path, {"guard": ASKS})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "eval", "--endpoint", broker.endpoint, "rm = 42; rm"],
        env=broker.environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = _until(ours, "Run it? [y/N]")
    assert "Delete? it says rm (hook guard/words)" in seen
    os.write(ours, typed.encode())
    assert process.wait(TIMEOUT_S) == code
    assert ("42" in _rest(ours)) == (code == 0)
    os.close(ours)


def test_ctrl_c_at_the_question_is_a_no(start: Start, tmp_path: Path) -> None:
    title = "return RequireApproval('Clear \\x1b[2J?', 'it says rm') if 'rm' in q.code else None"
    broker = _with(start, tmp_path, {"guard": hook_source(title)})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "eval", "--endpoint", broker.endpoint, "rm = 42; rm"],
        env=broker.environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    assert "Clear \\x1b[2J? it says rm" in _until(ours, "Run it? [y/N]"), "a hook's words cannot touch the terminal"
    state = Path(f"/proc/{process.pid}/task/{process.pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "S", "it reads")
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 5
    assert "the code did not run" in _rest(ours)
    os.close(ours)


def _until(fd: int, text: str) -> str:
    seen = ""
    deadline = time.monotonic() + TIMEOUT_S
    while text not in seen:
        assert select.select([fd], [], [], max(0, deadline - time.monotonic()))[0], seen
        seen += os.read(fd, 65536).decode()
    return seen


def _rest(fd: int) -> str:
    seen = b""
    while True:
        try:
            if not (more := os.read(fd, 65536)):
                return seen.decode()
        except OSError:  # the other side is closed
            return seen.decode()
        seen += more


def test_the_command_asks_nobody_where_there_is_no_terminal(start: Start, tmp_path: Path) -> None:
    broker = _with(start, tmp_path, {"guard": ASKS})
    done = _cli(broker, "eval", "rm = 1", stdin=subprocess.DEVNULL)
    assert done.returncode == 5
    assert "hook guard/words: it says rm; the code did not run" in done.stderr
    result = json.loads(_cli(broker, "eval", "--json", "rm = 1", stdin=subprocess.DEVNULL).stdout)
    assert (result["code"], result["approval"]["title"]) == ("approval-needed", "Delete?")


@pytest.mark.parametrize(
    "config",
    [
        config_entry(name="imports"),
        config_entry(name="imports", settings={"allow": 3}),
        config_entry(name="secrets", settings={"answer": "perhaps"}),
        config_entry(name="secrets", settings={"shapes": {"x": "("}}),
        config_entry(name="nothing-like-this"),
        config_entry(path="/no/such.py"),
        config_entry(name="secrets") * 2,
    ],
)
def test_a_broker_does_not_serve_without_an_extension_that_its_config_names(tmp_path: Path, config: str) -> None:
    (tmp_path / "c.toml").write_text(config)
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [*COMMAND, "serve", "--endpoint", f"ipc://{tmp_path}/run/b", "--config", str(tmp_path / "c.toml")],
        env={**os.environ, "REPLCTL_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert "extension" in done.stderr
    assert "Traceback" not in done.stderr


# --- other kinds ---

KINDS = """
from replbroker.sinks.jsonl_backend import JsonlBackend
import sys
@hookimpl
def replctl_register(register, settings):
    register(IntrospectSource(name="good", snapshot=lambda: {"n": 1}))
    register(IntrospectSource(name="bad", snapshot=lambda: 1/0))
    register(IntrospectSource(name="big", snapshot=lambda: "x" * 100_000))
    register(IntrospectSource(name="odd", snapshot=lambda: object()))
    register(IdentityBackend(name="static", identify={"a-token-of-ann": "ann"}.get))
    register(IdentityBackend(name="broken", identify=lambda token: 1/0))
    register(SessionBackend(name="mine", backend=JsonlBackend))
    register(Runtime(name="shout", interpreter=lambda: sys.executable, arguments=(SHOUT,), reads=(SHOUT,)))
    register(Runtime(name="absent", interpreter=lambda: None))
    register(ExtensionCommand(name="louder", summary="Say it louder", run=lambda client, session, text: client.eval(f"{text!r}.upper()", session).value))
    register(ExtensionCommand(name="fails", summary="Fails", run=lambda client, session, text: 1/0))
    register(ExtensionCommand(name="leaves", summary="Leaves", run=lambda client, session, text: sys.exit(0)))
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker with one of everything that a broker uses."""
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    elsewhere = tmp_path_factory.mktemp("kinds")
    driver = elsewhere / "shout.txt"
    driver.write_text(SHOUT)
    path = write_extension(elsewhere, "kinds", f"SHOUT = {str(driver)!r}\n" + KINDS)
    broker = BrokerProcess(
        directory, "transcript.backend=mine", "broker.unix=/DIRECTORY/run/lines.sock", config=config_entry(path=path)
    )
    yield broker
    assert broker.process.poll() is None, broker.log_text()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)


def test_snapshots_of_extensions_stand_beside_the_brokers_own(kinds: BrokerProcess) -> None:
    with kinds.wire() as wire:
        shown = wire.ask("introspect")["snapshots"]
    assert shown["kinds/good"] == {"n": 1}
    assert "error" in shown["kinds/bad"]
    assert "longer than" in shown["kinds/big"]["error"]
    assert "error" in shown["kinds/odd"]
    assert shown["eval-semaphore"]["slots"]
    assert {"kind": "runtime", "name": "shout", "owner": "kinds", "summary": ""} in shown["extensions"]


def test_a_language_of_an_extension_runs_code(kinds: BrokerProcess) -> None:
    with kinds.wire() as wire:
        assert "shout" in wire.ask("describe")["runtimes"]
        assert "absent" not in wire.ask("describe")["runtimes"]
        answer = wire.run("hello", "loud", runtime="shout")
        assert (answer.out, answer.value) == ("shouting\n", "HELLO")
        assert wire.ask("lookup", session="loud", symbol="x")["status"] == ["done", "error", "not-supported"]
        assert wire.ask("reset", session="loud")["epoch"] == 2
        assert wire.run("again", "loud").value == "AGAIN"


def test_a_token_that_an_extension_knows_lets_somebody_in_as_its_own(kinds: BrokerProcess) -> None:
    with kinds.wire() as wire:
        answer = wire.ask("hello", token="a-token-of-ann")
        assert answer["identity"] == "static:ann"
        assert wire.ask("describe")["identity"] == "static:ann"
        assert wire.ask("hello", token="another-token-0")["status"] == ["done", "error", "unauthorized"]
    log = wait_until(
        lambda: "identity-backend broken: ZeroDivisionError" in kinds.log_text() and kinds.log_text(), "it is told"
    )
    assert "another-token-0" not in log


def test_transcripts_are_kept_by_an_extension(kinds: BrokerProcess) -> None:
    with kinds.wire() as wire:
        wire.run("needle = 1", "kept")
        wire.ask("close", session="kept")
    wait_until(lambda: "needle" in _cli(kinds, "history", "--search", "needle").stdout, "it is kept")


def test_commands_of_extensions_stand_beside_the_others(kinds: BrokerProcess) -> None:
    assert _cli(kinds, "louder", "-s", "c", "so", "be it").stdout == "\"SO 'BE IT'\"\n"
    assert json.loads(_cli(kinds, "louder", "--json", "x").stdout)["text"] == "'X'"
    failed = _cli(kinds, "fails")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "extension kinds/fails: ZeroDivisionError" in failed.stderr
    left = _cli(kinds, "leaves")
    assert (left.returncode, "extension kinds/leaves: SystemExit" in left.stderr) == (2, True)
    assert "Say it louder" in _cli(kinds, "--help").stdout
    result = json.loads(_cli(kinds, "extensions", "--json").stdout)["extensions"]
    assert {(each["name"], each["loaded"]) for each in result if each["kind"] == "command"} == {
        (name, loaded) for name in ("louder", "fails", "leaves") for loaded in ("here", "broker")
    }


NOISY = """
import os
os.write(1, b"raw\\n")
print("import", flush=True)
@hookimpl
def replctl_register(register, settings):
    print("register", flush=True)
    def judge(q):
        print("judging", flush=True)
    def hum(client, session, text):
        os.write(1, b"raw\\n")
        print("humming", flush=True)
        return "hm"
    register(Hook(name="noisy", before_eval=judge))
    register(ExtensionCommand(name="hum", run=hum))
"""


def test_what_an_extension_prints_stays_out_of_answers(start: Start, tmp_path: Path) -> None:
    broker = _with(start, tmp_path, {"noisy": NOISY})
    assert json.loads(_cli(broker, "extensions", "--json").stdout)["status"] == ["done"]
    assert json.loads(_cli(broker, "tools").stdout)
    hummed = _cli(broker, "hum", "--json")
    assert (json.loads(hummed.stdout)["text"], "raw\nhumming" in hummed.stderr) == ("hm", True)
    broker.stop()
    assert _cli(broker, "eval", "6*7").stdout == "42\n", "one is started in the background"
    log = Path(broker.environ["REPLCTL_STATE_DIR"], "broker.log").read_text()
    assert "raw\nimport\nregister\n" in log
    assert "judging\n" in log
    _cli(broker, "shutdown")


def test_a_command_works_although_an_extension_cannot_be_loaded(start: Start, tmp_path: Path) -> None:
    broker = start()
    with (broker.directory / "config.toml").open("a") as config:
        config.write(config_entry(path=write_extension(tmp_path, "broken", "1/0")))
    done = _cli(broker, "extensions")
    assert done.returncode == 0
    assert "extension" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert _cli(broker, "eval", "1+1").stdout == "2\n"
