"""The codec between JSON frames and bash's messages, without a bash."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replworker.runtimes import frames
from replworker.runtimes.bash.codec import BashCodec
from replworker.runtimes.bash.completion import plan_completion
from replworker.runtimes.bash.messages import BashMessageReader
from replworker.runtimes.bash.shell_names import ShellNames, has_only_integers, parse_declarations, unquote
from replworker.runtimes.codec import MAX_FRAME_BYTES, JsonFrames, ProtocolError
from replworker.runtimes.commands import build_command

TAGS = ["ready", "idle", "begun", "state", "result", "syntax", "need", "answer", "other", ""]
DECLARED = b'declare -- a="1"\ndeclare -x E="2"\ndeclare -a arr=([0]="x" [1]="y z")\n'


def message(tag: str, *fields: bytes) -> bytes:
    return b"\0!" + tag.encode() + b"\0" + b"".join(b"." + field + b"\0" for field in fields) + b"=\0"


def encoded(op: str, n: int = 1, **fields: Any) -> bytes:
    return json.dumps({"op": op, "n": n, **fields}).encode()


def evaluated(n: int, code: str = "x", stdin: bool = False) -> bytes:
    return encoded("eval", n, code=code, name="<w:1>", silent=False, stdin=stdin, history=True)


def flood(codec: BashCodec, data: bytes) -> None:
    for _ in range(3 * MAX_FRAME_BYTES // len(data)):
        codec.decode(data)


def decoded(codec: BashCodec, data: bytes) -> tuple[list[dict[str, Any]], bytes]:
    text, answer = codec.decode(data)
    return [json.loads(body) for body in text], answer


def idle(token: bytes, why: bytes = b"", status: bytes = b"0") -> bytes:
    return message("idle", token, why, status)


READY = message("state", DECLARED, b"f\n") + message("ready", b"5.2.15", b"/bin/bash", b"77")


def started() -> BashCodec:
    codec = BashCodec()
    result, answer = decoded(codec, READY + idle(b"t1"))
    assert [frame["t"] for frame in result] == ["ready"]
    assert answer == b""
    return codec


def test_names_come_through_a_pipe_before_the_message_about_them() -> None:
    pipe = [message("state", DECLARED, b"f\n")]
    codec = BashCodec(lambda: pipe.pop() if pipe else b"")
    decoded(codec, message("ready", b"5.2.15", b"/bin/bash", b"77") + idle(b"t1"))
    codec.encode(evaluated(5))
    assert decoded(codec, message("begun")[:-2]) == ([], b"")
    pipe.append(b"\0!state\0.cut sho" + message("state", DECLARED.replace(b'a="1"', b'a="2"'), b"f\n"))
    result, _ = decoded(codec, message("begun")[-2:] + message("result", b"0"))
    assert [frame["changed"] for frame in result] == [["a"]]


def test_nothing_is_sent_before_bash_asks() -> None:
    codec = BashCodec()
    assert codec.encode(evaluated(1)) == b""
    _, answer = decoded(codec, READY + idle(b"t1"))
    assert answer == b"\0t1\0eval\x000,values\0<w:1>\x001\0x"
    assert codec.encode(evaluated(2)) == b""


def test_a_request_goes_when_bash_waits() -> None:
    assert started().encode(evaluated(1, "é", stdin=True)) == b"\0t1\0eval\x001,values\0<w:1>\x002\0" + "é".encode()


def test_an_eval_is_answered_with_its_status_and_changes() -> None:
    codec = started()
    codec.encode(evaluated(5))
    changed = DECLARED.replace(b'a="1"', b'a="2"') + b'declare -- new="1"\n'
    result, _ = decoded(codec, message("begun") + message("state", changed, b"f\ng\n") + message("result", b"3"))
    assert [(frame["t"], frame["n"], frame["value"], frame["changed"]) for frame in result] == [
        ("result", 5, "3", ["a", "g", "new"])
    ]


def test_an_idle_bash_that_had_begun_was_interrupted() -> None:
    codec = started()
    codec.encode(evaluated(1))
    result, _ = decoded(codec, message("begun") + idle(b"t2", b"", b"130"))
    assert [frame["outcome"] for frame in result] == ["interrupted"]


def test_an_idle_bash_that_had_not_begun_is_asked_again() -> None:
    codec = started()
    first = codec.encode(evaluated(1))
    result, again = decoded(codec, idle(b"t2"))
    assert (result, again) == ([], first.replace(b"t1", b"t2"))


def test_an_eval_that_is_interrupted_before_it_has_begun_never_runs() -> None:
    codec = started()
    codec.encode(evaluated(1))
    assert codec.encode(encoded("interrupt", 1)) == b""
    result, answer = decoded(codec, idle(b"t2"))
    assert (result, answer) == ([], b"\0t2\0ping\0\0\x000\0")
    result, _ = decoded(codec, message("answer"))
    assert [(frame["n"], frame["outcome"]) for frame in result] == [(1, "interrupted")]


def test_a_message_that_was_cut_short_is_forgotten() -> None:
    codec = started()
    codec.encode(evaluated(1))
    result, _ = decoded(codec, message("begun") + b"\0!state\0.declare -- cut" + idle(b"t2", b"exit", b"4"))
    assert [(frame["value"], frame["hint"] is not None) for frame in result] == [("4", True)]


def test_a_request_is_not_sent_anew_for_ever() -> None:
    codec = started()
    codec.encode(encoded("vars", max=5))
    results: list[dict[str, Any]] = []
    for turn in range(10):
        more, _ = decoded(codec, idle(b"t%d" % turn))
        results += more
    assert [frame["t"] for frame in results] == ["vars"]


@pytest.mark.parametrize(
    "data",
    [
        b"junk\0",
        message("result", b"0"),
        message("begun"),
        message("answer"),
        message("syntax", b"x"),
        message("other"),
        message("idle", b"t"),
        message("idle", b"t", b"", b"x"),
        message("idle", b"t", b"", b"-1"),
        b"\0!idle\0junk\0",
        message("state", b"x"),
        message("ready", b"5", b"/bin/bash", b"x"),
        message("result", b"9" * 100),
    ],
)
def test_what_may_not_be_said_now_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        started().decode(data)


def test_a_second_result_is_a_protocol_error() -> None:
    codec = started()
    codec.encode(evaluated(1))
    with pytest.raises(ProtocolError):
        codec.decode(message("begun") + message("result", b"0") * 2)


def test_a_message_without_end_is_a_protocol_error() -> None:
    codec = started()
    with pytest.raises(ProtocolError):
        flood(codec, b"x" * 65536)


def test_many_small_fields_are_bounded_too() -> None:
    codec = started()
    codec.decode(b"\0!answer\0")
    with pytest.raises(ProtocolError):
        flood(codec, b".\0" * 32768)


def test_a_long_list_of_names_is_cut_and_no_error() -> None:
    reader = BashMessageReader()
    reader.feed(b"\0!state\0.")
    for _ in range(20):
        reader.feed(b"x" * 1024 * 1024)
    (whole,) = reader.feed(b"\0.f\0=\0")
    assert whole.fields[0] == b"x" * (1024 * 1024 - 1)


def test_code_with_nul_is_answered_when_bash_comes_round() -> None:
    codec = started()
    assert b"ping" in codec.encode(evaluated(1, "a\0b"))
    result, _ = decoded(codec, message("answer"))
    assert result[0]["ex"]["type"] == "SyntaxError"


def test_a_need_is_told_for_the_eval_that_runs_only() -> None:
    codec = started()
    assert decoded(codec, message("need"))[0] == []
    codec.encode(evaluated(8))
    result, _ = decoded(codec, message("begun") + message("need"))
    assert result == [{"t": "need-input", "n": 8}]


_fields = st.lists(st.binary(max_size=20) | st.sampled_from([b"0", b"7", b"exit", b"130", DECLARED, b""]), max_size=12)
_messages = st.builds(lambda tag, fields: message(tag, *fields), st.sampled_from(TAGS), _fields)
_noise = st.binary(max_size=40) | st.sampled_from(
    [b"\0", b"=\0", b".x\0", b"!idle\0", b"!", READY, idle(b"t", b"", b"130")]
)
_asks = st.sampled_from(
    [
        evaluated(1),
        evaluated(2, "a\0b"),
        encoded("interrupt", 1),
        encoded("vars", 3, max=5),
        encoded("clear", 4),
        encoded("complete", 5, code="echo $a", pos=7, max=3),
        encoded("lookup", 6, symbol="x", module=None),
        encoded("dump", 7, max=9),
        encoded("restore", 8, data="x"),
        encoded("assign", 9, cwd=None, env={"A": "b"}, limits={}),
    ]
)


@settings(max_examples=400)
@given(st.lists(_messages | _noise | _asks.map(lambda body: ("ask", body)), max_size=25), st.integers(1, 50))
def test_whatever_bash_says_is_a_frame_or_a_protocol_error(steps: list[Any], size: int) -> None:
    codec = BashCodec()
    try:
        for step in steps:
            if isinstance(step, tuple):
                assert isinstance(codec.encode(step[1]), bytes)
                continue
            for at in range(0, len(step), size):
                text, answer = codec.decode(step[at : at + size])
                assert isinstance(answer, bytes)
                for body in text:
                    frames.decode(body)
    except ProtocolError:
        return


@settings(max_examples=300)
@given(
    st.text(max_size=300)
    | st.lists(st.sampled_from(list("declare -aAxn \n='\"$()[]\\01ab")), max_size=200).map("".join)
)
def test_any_text_in_the_place_of_names_is_read_without_error(text: str) -> None:
    names = ShellNames.parse("declare " + text, text)
    assert len(names.changed_since(ShellNames())) <= 100
    for how in parse_declarations(text).values():
        assert how.value is None or isinstance(unquote(how.value), str)
        assert how.value is None or has_only_integers(how.value) in (True, False)


@settings(max_examples=300)
@given(st.text(max_size=200), st.integers(-5, 250))
def test_any_place_of_any_code_has_a_word(code: str, pos: int) -> None:
    asks = plan_completion(code, pos)
    assert 0 <= asks.start <= max(0, min(pos, len(code)))
    assert asks.asks


def test_a_word_is_found_at_the_end_of_long_code() -> None:
    code = "a" * 1_000_000 + " $na"
    assert plan_completion(code, len(code)).start == len(code) - 2


@given(st.binary(max_size=200))
def test_json_frames_come_out_as_they_went_in(body: bytes) -> None:
    codec = JsonFrames()
    results = []
    for byte in codec.encode(body) * 2:
        more, answer = codec.decode(bytes([byte]))
        results += more
        assert answer == b""
    assert results == [body, body]


def test_a_json_frame_that_is_too_long_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        JsonFrames().decode((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_a_runtime_brings_its_codec_and_its_way_to_be_interrupted() -> None:
    bash = build_command("bash", "/bin/bash", {"PATH": "/bin", "TERM": "xterm"})
    assert (bash.codec, bash.extra_signal, bash.wrapper) == (BashCodec, signal.SIGURG, None)
    assert (bash.env["TERM"], bash.env["PAGER"], bash.env["PATH"]) == ("dumb", "cat", "/bin")
    python = build_command("python", sys.executable, {})
    assert (python.codec, python.extra_signal) == (JsonFrames, None)
