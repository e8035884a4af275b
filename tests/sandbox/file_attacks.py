"""Attacks on the disk by files that clients put into sessions or fetch from them, and the test that tries each."""

from __future__ import annotations

from attack_index import IndexedAttack

FILE_ATTACKS = [
    IndexedAttack(
        "files",
        "a file put over protected ones, or through links, pipes, devices or /proc",
        "the sandbox's root and its user's rights",
        "sandbox/test_file_transfer.py::test_what_the_session_may_not_write_is_refused",
    ),
    IndexedAttack(
        "files",
        "a file fetched from outside of the sandbox",
        "the sandbox's root and its user's rights",
        "sandbox/test_file_transfer.py::test_what_the_session_may_not_read_is_refused",
    ),
    IndexedAttack(
        "files",
        "a file of a session that is shared to read",
        "only who may use a session gets its files",
        "broker/test_access.py::test_who_may_read_a_session_gets_no_file_of_it",
    ),
]
