"""Attacks that are no program in a session: at a broker's sockets, from one session on another, at the start; and the
test that tries each."""

from __future__ import annotations

from typing import NamedTuple


class IndexedAttack(NamedTuple):
    """`held_by`: a layer, or in a word or two what does it. `test`: file and function."""

    where: str
    attack: str
    held_by: str
    test: str


INDEXED_ATTACKS = [
    IndexedAttack(
        "broker",
        "random bytes and half messages",
        "handshake (ZAP)",
        "e2e/test_faults.py::test_random_bytes_and_half_messages_on_every_socket_change_nothing",
    ),
    IndexedAttack(
        "broker",
        "a frame that claims a terabyte",
        "bound on frames",
        "sandbox/test_hostile_clients.py::test_a_frame_that_claims_a_terabyte_ends_its_connection",
    ),
    IndexedAttack(
        "broker",
        "a request that is too long",
        "bound on messages",
        "e2e/test_limits.py::test_a_request_that_is_too_long_is_answered",
    ),
    IndexedAttack(
        "broker",
        "a message of a thousand parts",
        "one frame a message",
        "e2e/test_faults.py::test_messages_of_many_parts_are_not_requests",
    ),
    IndexedAttack(
        "broker",
        "what is no request",
        "typed decoding",
        "e2e/test_faults.py::test_a_message_that_is_no_request_gets_a_typed_answer",
    ),
    IndexedAttack(
        "broker",
        "hundreds of connections that say nothing",
        "deadline of the handshake",
        "sandbox/test_hostile_clients.py::test_connections_that_never_say_a_word_cost_nobody_else_anything",
    ),
    IndexedAttack(
        "broker",
        "more connections than it takes",
        "bound on connections",
        "e2e/test_limits.py::test_connections_beyond_the_limit_are_answered_and_places_come_back",
    ),
    IndexedAttack(
        "broker",
        "another client's routing id",
        "peers by connection",
        "sandbox/test_hostile_clients.py::test_another_clients_routing_id_brings_none_of_its_answers",
    ),
    IndexedAttack(
        "broker",
        "thousands of connections where few files may be open",
        "listeners that are held",
        "e2e/test_descriptors.py::test_thousands_of_connections_neither_end_it_nor_those_that_it_has",
    ),
    IndexedAttack(
        "broker",
        "a flood of lines",
        "few lines a turn",
        "e2e/test_floods.py::test_a_flood_of_lines_stalls_nobody_and_costs_no_session",
    ),
    IndexedAttack(
        "broker",
        "the broker's own name for a connection as routing id",
        "peers by connection",
        "e2e/test_peers.py::test_who_takes_the_name_of_anothers_connection_has_none_of_its_rights",
    ),
    IndexedAttack(
        "broker",
        "the name of a connection that is to come",
        "peers by connection",
        "e2e/test_peers.py::test_a_name_that_was_taken_beforehand_brings_neither_rights_nor_answers",
    ),
    IndexedAttack(
        "broker",
        "the routing id of a client that has left",
        "peers by connection",
        "e2e/test_peers.py::test_a_connections_identity_does_not_outlive_it",
    ),
    IndexedAttack(
        "broker",
        "a token that was taken back, on a connection that is open",
        "a look at each request",
        "e2e/test_identities.py::test_a_token_that_was_revoked_ends_what_waits_on_its_connection_at_once",
    ),
    IndexedAttack(
        "broker",
        "a client that vanishes",
        "routes that are dropped",
        "e2e/test_faults.py::test_a_client_that_vanishes_in_the_middle_leaves_an_eval_that_can_be_read",
    ),
    IndexedAttack(
        "broker",
        "a client that never reads",
        "bound on what waits",
        "e2e/test_faults.py::test_a_client_that_never_reads_hurts_nobody_else",
    ),
    IndexedAttack(
        "broker",
        "another's session",
        "owner and shares",
        "e2e/test_sharing.py::test_a_session_is_nobody_elses_until_it_is_shared",
    ),
    IndexedAttack(
        "broker",
        "another's session, by every operation of the wire",
        "names and sessions have owners",
        "sandbox/test_ten_users.py::test_no_operation_gets_at_anothers_session",
    ),
    IndexedAttack(
        "broker",
        "another's session, by every command",
        "names and sessions have owners",
        "sandbox/test_ten_users.py::test_the_command_line_gets_at_nothing_of_anothers",
    ),
    IndexedAttack(
        "broker",
        "another's session, by an agent's tools",
        "names and sessions have owners",
        "sandbox/test_ten_users.py::test_an_agents_tools_get_at_nothing_of_anothers",
    ),
    IndexedAttack(
        "broker",
        "another's session, by an editor",
        "names and sessions have owners",
        "sandbox/test_ten_users.py::test_an_editor_gets_at_nothing_of_anothers",
    ),
    IndexedAttack(
        "broker",
        "lists, counters and events of others",
        "what one may not see is not there",
        "sandbox/test_ten_users.py::test_what_is_about_the_broker_tells_nothing_of_anothers",
    ),
    IndexedAttack(
        "broker",
        "a name that another took first",
        "names of their owner",
        "e2e/test_sharing.py::test_each_has_its_own_names_and_an_admin_falls_into_nobodys",
    ),
    IndexedAttack(
        "broker",
        "a session planted among another's names",
        "the taker's word",
        "e2e/test_sharing.py::test_nobody_finds_a_session_of_anothers_making_among_its_own",
    ),
    IndexedAttack(
        "broker",
        "the memory of all, by many sessions of one user",
        "a sum by identity",
        "sandbox/test_memory.py::test_the_sum_of_an_identity_ends_its_largest_session_with_and_without_groups",
    ),
    IndexedAttack(
        "broker",
        "another user of the machine",
        "peer credentials",
        "e2e/test_identities.py::test_another_user_of_the_machine_is_known_by_the_kernels_word",
    ),
    IndexedAttack(
        "broker",
        "hanging up, and a descriptor that is another client's by then",
        "numbers of accepts and handshakes",
        "e2e/test_identities.py::test_a_request_that_waits_is_not_taken_for_that_of_who_came_to_its_connections_descriptor",
    ),
    IndexedAttack(
        "broker",
        "hanging up on loopback at once, so that the kernel names no user",
        "a socket that nobody holds is nobody's",
        "e2e/test_identities.py::test_who_has_hung_up_on_loopback_is_nobody_and_not_root",
    ),
    IndexedAttack(
        "broker",
        "a client without a key, from elsewhere",
        "CURVE and ZAP",
        "e2e/test_identities.py::test_a_client_with_a_key_comes_in_over_tcp_and_one_without_does_not",
    ),
    IndexedAttack(
        "broker",
        "guessing tokens",
        "end of the connection",
        "e2e/test_identities.py::test_ten_wrong_tokens_in_a_row_end_the_connection",
    ),
    IndexedAttack(
        "broker",
        "frames on the workers' socket",
        "tokens of workers",
        "e2e/test_faults.py::test_frames_of_a_stranger_on_the_workers_socket_are_not_heard",
    ),
    IndexedAttack(
        "broker",
        "its folder and sockets",
        "modes 0700 and 0600",
        "e2e/test_start.py::test_what_a_broker_makes_is_its_users_alone",
    ),
    IndexedAttack(
        "broker",
        "a file outside of the load paths",
        "resolving beneath",
        "e2e/test_files_and_rules.py::test_what_may_not_be_loaded_is_refused_without_a_path",
    ),
    IndexedAttack(
        "broker",
        "secrets in command lines, environments, logs, records",
        "files of their own",
        "sandbox/test_secrets.py::test_no_file_of_the_broker_has_one_but_their_own",
    ),
    IndexedAttack(
        "broker",
        "a session's folder in the broker's own",
        "refusal of the folder",
        "sandbox/test_workspaces.py::test_a_folder_below_the_brokers_own_is_given_to_nobody",
    ),
    IndexedAttack(
        "broker",
        "a session's folder in the broker's code",
        "refusal of the folder",
        "sandbox/test_workspaces.py::test_where_the_brokers_code_lies_is_no_place_to_write",
    ),
    IndexedAttack(
        "broker",
        "a folder through /proc/1/root or a descriptor",
        "typed refusal of such paths",
        "sandbox/test_hostile_projects.py::test_what_is_no_path_is_an_invalid_request_for_every_field",
    ),
    IndexedAttack(
        "broker",
        "root's directory as a working directory",
        "the asker's rights",
        "sandbox/test_requester_rights.py::test_a_directory_of_roots_is_given_to_root_alone",
    ),
    IndexedAttack(
        "broker",
        "a directory swapped for root's while it is asked for",
        "opening with the asker's rights",
        "sandbox/test_requester_rights.py::test_a_directory_that_is_swapped_while_it_is_asked_for_is_never_roots",
    ),
    IndexedAttack(
        "broker",
        "files of others in a user's own directory",
        "id maps",
        "sandbox/test_requester_rights.py::test_files_of_others_in_a_users_directory_stay_theirs",
    ),
    IndexedAttack(
        "broker",
        "a directory of a group that one is not in",
        "the process's groups",
        "sandbox/test_requester_rights.py::test_a_process_has_the_groups_that_it_connected_with",
    ),
    IndexedAttack(
        "broker",
        "an environment in a closed directory",
        "the asker's rights",
        "sandbox/test_requester_rights.py::test_an_environment_is_opened_with_the_askers_rights",
    ),
    IndexedAttack(
        "broker",
        "a file of root's through `load-file`",
        "the asker's rights",
        "sandbox/test_requester_rights.py::test_a_file_is_loaded_with_the_askers_rights",
    ),
    IndexedAttack(
        "broker",
        "the rights of who takes a session over, or clones it",
        "an end of sharing, and of others' code",
        "sandbox/test_requester_rights.py::test_nobody_gets_roots_rights_by_giving_root_a_session",
    ),
    IndexedAttack(
        "broker",
        "directories for a key that is no user here",
        "`[[identities]]`",
        "sandbox/test_requester_rights.py::test_a_token_or_key_acts_as_the_user_that_the_config_names",
    ),
    IndexedAttack(
        "broker",
        "code as root, where nothing is sandboxed",
        "refusal",
        "sandbox/test_agent_isolation.py::test_without_a_sandbox_a_root_broker_opens_sessions_for_root_alone",
    ),
    IndexedAttack(
        "broker",
        "another agent's directory, by links and `..`",
        "workspaces of an identity",
        "sandbox/test_agent_isolation.py::test_an_agent_works_in_its_own_directories_alone",
    ),
    IndexedAttack(
        "broker",
        "another agent's directory, through an environment",
        "workspaces of an identity",
        "sandbox/test_agent_isolation.py::test_an_agent_runs_environments_of_its_own_alone",
    ),
    IndexedAttack(
        "broker",
        "another agent's file through `load-file`",
        "workspaces of an identity",
        "sandbox/test_agent_isolation.py::test_an_agent_loads_files_of_its_own_alone",
    ),
    IndexedAttack(
        "session",
        "code that a clone unpickles",
        "the clone's own sandbox",
        "sandbox/test_hostile_clients.py::test_what_a_clone_brings_along_runs_in_its_own_sandbox_and_nowhere_else",
    ),
    IndexedAttack(
        "session",
        "objects for the broker or a worker to load",
        "nothing is unpickled there",
        "sandbox/test_attack_index.py::test_neither_broker_nor_worker_loads_objects",
    ),
    IndexedAttack(
        "session",
        "a clone with a looser policy",
        "policy of the source",
        "sandbox/test_hostile_clients.py::test_a_clone_is_held_as_tightly_as_its_source",
    ),
    IndexedAttack(
        "session",
        "the broker's own sockets in the workspace",
        "hidden paths",
        "sandbox/test_own_sockets.py::test_a_session_reaches_none_of_the_brokers_own_sockets",
    ),
    IndexedAttack(
        "session",
        "answers out of turn",
        "checks of the worker",
        "e2e/test_faults.py::test_an_interpreter_that_talks_out_of_turn_dies_with_its_session_alone",
    ),
    IndexedAttack(
        "session",
        "inherited descriptors",
        "none are passed on",
        "sandbox/test_attacks_in_sessions.py::test_a_session_inherits_no_descriptor_that_leads_anywhere",
    ),
    IndexedAttack(
        "session",
        "a workspace swapped for a symlink",
        "opening without symlinks",
        "sandbox/test_child.py::test_a_folder_that_was_swapped_for_a_symlink_is_refused",
    ),
    IndexedAttack(
        "session",
        "the broker's config or extension in its folder",
        "workspace",
        "sandbox/test_workspaces.py::test_what_the_broker_obeys_at_its_next_start_is_not_written",
    ),
    IndexedAttack(
        "session",
        "an environment that names files of others",
        "checks of what it names",
        "sandbox/test_workspaces.py::test_an_environment_that_a_session_has_made_shows_it_nothing_of_others",
    ),
    IndexedAttack(
        "session",
        "a program in the place of its python",
        "the broker's python sets the limits",
        "sandbox/test_workspaces.py::test_a_program_in_the_place_of_a_python_does_not_get_around_the_limits",
    ),
    IndexedAttack(
        "session",
        "a folder of its environment swapped for a symlink",
        "a second look from inside",
        "sandbox/test_child.py::test_a_folder_of_an_environment_that_was_swapped_before_it_is_mounted_stops_the_start",
    ),
    IndexedAttack(
        "session",
        "files without end in a project's environment",
        "bounded reads of regular files",
        "sandbox/test_hostile_projects.py::test_files_without_end_in_an_environment_cost_the_worker_nothing",
    ),
    IndexedAttack(
        "session",
        "a forged snapshot",
        "its bound, before anybody reads it",
        "sandbox/test_hostile_projects.py::test_a_snapshot_that_is_forged_is_refused_before_anybody_reads_it",
    ),
    IndexedAttack(
        "session",
        "another session of the same user: kill, trace, read, starve",
        "processes, user, limits",
        "sandbox/test_requester_rights.py::test_two_sessions_of_one_user_cannot_reach_or_starve_each_other",
    ),
    IndexedAttack(
        "session",
        "a broker that is killed",
        "all die with it",
        "e2e/test_faults.py::test_a_killed_broker_takes_workers_and_all_they_started_along",
    ),
    IndexedAttack(
        "session",
        "control sequences for the terminal of who looks at it",
        "escapes in every line",
        "cli/test_terminal_safe.py::test_no_command_writes_control_characters_of_others",
    ),
    IndexedAttack(
        "start-up",
        "no bubblewrap",
        "nothing is opened",
        "sandbox/test_probe.py::test_no_bubblewrap_says_what_to_install",
    ),
    IndexedAttack(
        "start-up",
        "a bubblewrap that others may change",
        "owner and mode",
        "sandbox/test_probe.py::test_a_bubblewrap_that_others_may_change_is_not_used",
    ),
    IndexedAttack(
        "start-up",
        "a bubblewrap that confines nothing",
        "the canary",
        "sandbox/test_probe.py::test_a_bubblewrap_that_does_nothing_is_found_out",
    ),
    IndexedAttack(
        "start-up",
        "namespaces that are denied",
        "nothing is opened",
        "sandbox/test_probe.py::test_where_namespaces_are_denied_the_probe_says_so",
    ),
    IndexedAttack(
        "start-up",
        "a required layer that is missing",
        "nothing is opened",
        "sandbox/test_probe.py::test_a_layer_that_was_asked_for_and_is_missing_makes_the_sandbox_unavailable",
    ),
    IndexedAttack(
        "start-up",
        "a request for less sandbox",
        "requests only tighten",
        "sandbox/test_broker.py::test_a_request_makes_it_tighter_and_never_looser",
    ),
    IndexedAttack(
        "start-up",
        "an environment that switches it off",
        "the config file alone",
        "sandbox/test_hostile_clients.py::test_the_environment_cannot_switch_the_sandbox_off",
    ),
    IndexedAttack(
        "start-up",
        "sessions without any sandbox",
        "nothing is opened",
        "sandbox/test_broker.py::test_without_a_sandbox_nothing_runs",
    ),
    IndexedAttack(
        "start-up",
        "a second claim of a warm interpreter",
        "a slot is used once",
        "sandbox/test_child.py::test_a_slot_is_used_once",
    ),
    IndexedAttack(
        "start-up",
        "a warm interpreter that dies",
        "another takes its place",
        "broker/test_worker_pool.py::test_a_warm_worker_that_is_lost_is_replaced",
    ),
    IndexedAttack(
        "start-up",
        "folders of others in the place of ours",
        "refusal to start",
        "e2e/test_start.py::test_a_folder_that_others_may_enter_is_refused",
    ),
]
