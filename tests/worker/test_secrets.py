"""Secrets in the egress proxy: where a value goes into a request, and how it is taken out of an answer."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.config import ConfigError, load
from replwire.secret_entries import SecretEntry
from replworker.egress.secret_values import read_values
from replworker.egress.substitution import MAX_HEAD_BYTES, HeadTooLong, Redactor, fill_head, split_head

VALUES = {b"replctl-T-00": b"value-of-T"}


def test_a_head_is_split_at_its_empty_line() -> None:
    assert split_head(b"GET / HTTP/1.1\r\nA: b\r\n\r\nbody") == (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", b"body")
    assert split_head(b"GET / HTTP/1.1\r\nA: b\r\n") is None
    with pytest.raises(HeadTooLong):
        split_head(b"x" * (MAX_HEAD_BYTES + 1))


def test_fields_of_a_head_get_the_value_and_the_request_line_does_not() -> None:
    head = b"GET /?t=replctl-T-00 HTTP/1.1\r\nHost: a\r\nX-Token: replctl-T-00\r\nAccept-Encoding: gzip\r\n\r\n"
    filled = fill_head(head, VALUES)
    assert filled.startswith(b"GET /?t=replctl-T-00 HTTP/1.1\r\n")
    assert b"X-Token: value-of-T\r\n" in filled
    assert b"gzip" not in filled
    assert filled.endswith(b"\r\n\r\n")


def test_basic_authentication_is_decoded_for_it() -> None:
    token = base64.b64encode(b"me:replctl-T-00")
    filled = fill_head(b"GET / HTTP/1.1\r\nAuthorization: Basic " + token + b"\r\n\r\n", VALUES)
    assert base64.b64encode(b"me:value-of-T") in filled
    odd = b"GET / HTTP/1.1\r\nAuthorization: Basic ab=cd\r\n\r\n"
    assert b"Basic ab=cd\r\n" in fill_head(odd, VALUES)


def test_a_connection_that_becomes_another_protocol_keeps_its_fields() -> None:
    head = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nA: replctl-T-00\r\n\r\n"
    assert fill_head(head, VALUES) == head.replace(b"replctl-T-00", b"value-of-T")


@given(
    st.lists(st.sampled_from([b"secret-value", b"secret-", b"value", b"x", b"secret", b"-value", b"s"]), max_size=12),
    st.integers(1, 7),
)
def test_a_value_is_taken_out_however_the_stream_is_cut(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    redactor = Redactor([b"secret-value"])
    pieces = [redactor.feed(data[at : at + size]) for at in range(0, len(data), size)]
    found = b"".join([*pieces, redactor.finish()])
    assert found == data.replace(b"secret-value", b"*" * 12)


def test_what_cannot_begin_a_value_does_not_wait() -> None:
    redactor = Redactor([b"secret-value"])
    assert redactor.feed(b"hello") == b"hello"
    assert redactor.feed(b"hello sec") == b"hello "
    assert redactor.feed(b"ond") == b"second"


def read(**fields: object) -> tuple[bytes | None, str | None]:
    entry = SecretEntry(name="T", hosts=["a.test"], **fields)  # type: ignore[arg-type]
    values, problems = read_values([entry], {"IN_ENV": "from-env", "PATH": "/usr/bin:/bin"})
    return values.get("T"), problems.get("T")


def test_a_value_comes_from_a_file_a_variable_or_a_program(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("from-file\n")
    assert read(file=str(tmp_path / "t")) == (b"from-file", None)
    assert read(env="IN_ENV") == (b"from-env", None)
    assert read(command=[sys.executable, "-c", "print('from-' + 'program')"]) == (b"from-program", None)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"env": "NOT_THERE"}, "the broker has no environment variable NOT_THERE"),
        ({"file": "/nonexistent/t"}, "/nonexistent/t: No such file or directory"),
        ({"command": ["false"]}, "false exited with code 1"),
        ({"command": ["/nonexistent/program"]}, "/nonexistent/program: No such file or directory"),
        ({"command": ["echo", "-n", "short"]}, "its value has 5 bytes, and not 6 to 16384"),
        ({"command": ["printf", r"two\nlines"]}, "its value has bytes that no header may have"),
    ],
)
def test_a_value_that_cannot_be_had_is_a_problem_that_does_not_show_it(fields: dict[str, object], problem: str) -> None:
    assert read(**fields) == (None, problem)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ('name = "T"\nhosts = ["a.test"]', "exactly one of command, file and env"),
        ('name = "T"\nhosts = ["a.test"]\nfile = "/x"\nenv = "Y"', "exactly one of command, file and env"),
        ('name = "T"\nhosts = []\nenv = "Y"', "no host would get it"),
        ('name = "T"\nhosts = ["*"]\nenv = "Y"', "'\\*' is not NAME"),
        ('name = "T"\nhosts = ["a.test/x"]\nenv = "Y"', "is not NAME"),
        ('name = "T"\nhosts = ["a.test"]\nfile = "x"', "is not an absolute path"),
        ('name = "PATH"\nhosts = ["a.test"]\nenv = "Y"', "sessions need this variable"),
        ('name = "A B"\nhosts = ["a.test"]\nenv = "Y"', "name"),
    ],
)
def test_an_entry_that_makes_no_sense_is_an_error_of_the_config(entry: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load(f"[[secrets]]\n{entry}")


def test_a_name_is_listed_once() -> None:
    entry = '[[secrets]]\nname = "T"\nhosts = ["a.test"]\nenv = "Y"\n'
    assert load(entry).config.secrets[0].is_for("a.test", 443)
    assert not load(entry).config.secrets[0].is_for("a.test", 80)
    with pytest.raises(ConfigError, match="T is listed twice"):
        load(entry * 2)
