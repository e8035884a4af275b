"""Attacks by saved sessions and on kept files, as rows of the index."""

from __future__ import annotations

from attack_index import IndexedAttack

STATE_ATTACKS = [
    IndexedAttack(
        "session",
        "code in the file of a saved session",
        "the new session's sandbox",
        "sandbox/test_hostile_clients.py::test_what_a_saved_session_brings_along_runs_in_the_sandbox_of_its_session",
    ),
    IndexedAttack(
        "broker",
        "a forged or damaged file of a saved session",
        "header and checksum; the interpreter alone reads the rest",
        "e2e/test_saved_sessions.py::test_a_forged_file_with_a_right_checksum_harms_nobody_else",
    ),
    IndexedAttack(
        "session",
        "directories swapped for links before a rollback of files",
        "no link is followed, with the session's own rights",
        "e2e/test_checkpoint_files.py::test_a_session_that_swaps_its_directories_for_links_changes_nothing_outside",
    ),
    IndexedAttack(
        "session",
        "the descriptor of kept files closed or replaced",
        "its inode is checked",
        "worker/test_harness_files.py::test_a_session_that_closes_the_descriptor_is_told_and_loses_no_file",
    ),
]
