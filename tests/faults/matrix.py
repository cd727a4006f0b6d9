"""Every row of the fault matrix except security: its tests, or why it has none.

A test is one of row NN by its name, `test_row_NN_...`, in these files. TESTS has those of other
names, which are in the package that they test.
"""

NAMED_BY_ROW = (
    "tests/faults/test_*.py",
    "tests/consumer/test_*.py",
    "tests/store/test_database_faults.py",
)

_HERE = "tests/faults/"
_QUEUE_TLS = "tests/ingest/redis/test_queue_tls.py::"
_QUEUE_FAULTS = "tests/ingest/redis/test_queue_faults.py::"
_ASSEMBLER = "tests/ingest/assembly/test_assembler.py::"
_SILENT_RANKS = "tests/consumer/test_run_cache_silent_ranks.py::"
_SENDER = "tests/consumer/test_sender.py::"
_LOCKED = "tests/consumer/test_sender_locked.py::"
_SMTP = "tests/alerts/test_smtp.py::"
_RESTORE = "tests/store/test_backup_hostile.py::"
_SECRET_SEARCH = "tests/e2e/test_secret_search.py::"
_ENDS = "tests/client/ending/test_process_end.py::"
_EXITS = "tests/api/routes/jobs/test_exits.py::"
_WATCH = f"{_HERE}test_watch.py::"
_SERVICE_WATCH = "tests/watch/test_service_watch.py::"
_FUZZ = "tests/fuzz/test_superlinear.py::"
_PLACES = "tests/api/http/test_work_places.py::"
_SSRF = "tests/alerts/guard/test_guard_ssrf.py::"

TESTS: dict[int, tuple[str, ...]] = {
    7: (
        "tests/api/service/test_status_loss_warnings.py::test_start_is_refused_on_a_lossy_queue",
        "tests/consumer/test_run_cache_counts.py::test_missing_batch_number_counts_as_a_lost_batch",
    ),
    12: (f"{_QUEUE_FAULTS}test_failover_loses_no_batch_acknowledged_by_a_replica",),
    13: (f"{_QUEUE_FAULTS}test_no_command_touches_the_keys_of_two_shards",),
    21: (f"{_SILENT_RANKS}test_set_clock_makes_no_rank_silent_and_closes_no_window",),
    23: (
        f"{_ASSEMBLER}test_runaway_worker_hits_the_open_step_limit",
        f"{_ASSEMBLER}test_window_closes_early_at_the_operation_limit",
    ),
    26: (
        "tests/ingest/assembly/test_assembler_properties.py::test_any_order_repetition_and_cutting_gives_the_same_windows",
    ),
    27: (f"{_ASSEMBLER}test_late_data_revises_a_closed_window",),
    28: (
        "tests/consumer/test_shard_windows.py::test_step_without_one_rank_is_analysed_and_names_the_rank",
    ),
    29: (f"{_SILENT_RANKS}test_job_without_further_batches_is_saved_as_stalled",),
    33: (f"{_ASSEMBLER}test_reused_batch_number_is_a_conflict_and_the_first_wins",),
    35: (
        "tests/ingest/wire/test_codec_forms.py::test_only_steps_beyond_the_maximum_jump_are_refused",
    ),
    37: ("tests/ingest/wire/test_codec.py::test_a_row_out_of_bounds_is_named",),
    38: (
        "tests/consumer/test_commit_failures.py::test_batch_that_crashes_consumers_becomes_a_dead_letter_at_last",
    ),
    39: (
        "tests/ingest/wire/test_codec_forms.py::test_unknown_version_or_content_type_error_lists_the_known_ones",
    ),
    40: ("tests/ingest/wire/test_codec.py::test_arbitrary_bytes_are_a_batch_or_a_4xx",),
    41: ("tests/ingest/wire/test_codec_forms.py::test_decompression_bomb_is_too_large",),
    43: (f"{_SILENT_RANKS}test_stalled_job_is_evicted_and_loaded_again",),
    44: ("tests/api/http/test_limits.py::test_active_jobs_of_a_project_are_limited",),
    47: (f"{_SSRF}test_a_redirect_to_it_is_not_followed",),
    49: (
        f"{_SSRF}test_among_good_answers_it_is_refused",
        f"{_SSRF}test_a_name_that_changes_its_meaning_is_asked_for_once_and_then_refused",
    ),
    56: ("tests/client/test_webhook.py::test_message_replayed_later_is_refused",),
}

# What fails in Paceline itself or is turned against it, by name: such rows have no number.
OWN_FAULTS: dict[str, tuple[str, ...]] = {
    "secrets are searched for in database, files, logs, backup and command lines": (
        f"{_SECRET_SEARCH}test_no_secret_is_in_files_logs_backup_or_command_lines_of_serve",
        f"{_SECRET_SEARCH}test_no_secret_is_in_files_and_logs_of_separate_processes_on_postgresql",
    ),
    "the secret key is missing, wrong or rotated": (
        "tests/store/credentials/test_resealing.py::test_without_a_key_nothing_is_stored",
        "tests/store/credentials/test_resealing.py::test_rows_of_a_key_that_is_not_here_stay_as_they_are",
        "tests/store/credentials/test_resealing.py::test_rotation_moves_every_row_to_the_newest_key",
        "tests/api/routes/alerts/test_receivers_locked.py::"
        "test_service_with_another_key_runs_and_says_why_a_receiver_cannot_be_used",
        f"{_LOCKED}test_sender_without_the_key_uses_up_no_message_and_disables_no_receiver",
    ),
    "a cookie is used after its session was ended": (
        "tests/api/routes/test_session.py::test_sign_out_ends_the_session_on_the_server",
        "tests/api/routes/test_session.py::"
        "test_ended_session_is_refused_within_five_seconds_by_every_process",
    ),
    "settings are misspelt, or such that no consumer can run": (
        "tests/test_settings.py::test_unknown_variable_is_an_error_with_the_nearest_name",
        "tests/test_settings.py::test_api_does_not_start_with_settings_that_stop_its_consumer",
    ),
    "a restore file is hostile": (
        f"{_RESTORE}test_bomb_is_refused_before_it_is_unpacked",
        f"{_RESTORE}test_row_without_an_end_is_refused_at_its_limit",
        f"{_RESTORE}test_wrong_declared_size_is_refused",
        f"{_RESTORE}test_members_with_other_names_are_refused_and_nothing_is_unpacked",
        f"{_RESTORE}test_tables_that_no_backup_has_are_refused",
        f"{_RESTORE}test_columns_that_the_table_lacks_are_refused",
        f"{_RESTORE}test_value_of_another_type_is_refused",
        f"{_RESTORE}test_truncated_file_is_refused",
        f"{_RESTORE}test_changed_bytes_never_pass_unnoticed_nor_end_in_a_traceback",
    ),
    "a backup is of an older release": (
        "tests/store/test_upgrade.py::test_backup_of_the_release_before_is_restored",
        "tests/store/test_backup.py::test_invalid_backup_file_restores_nothing",
    ),
    "a name server rebinds a receiver's name to loopback": (
        "tests/alerts/guard/test_guard_rebinding.py::"
        "test_name_that_rebinds_to_loopback_is_never_followed_there",
    ),
    "a name holds SMTP commands": (
        f"{_SMTP}test_text_of_others_adds_no_header_no_recipient_and_no_second_mail",
        f"{_SMTP}test_address_with_a_line_end_is_no_receiver",
        f"{_SMTP}test_sender_with_a_line_end_stops_the_start",
    ),
    "receivers hang, reset and redirect while alerts fire": (
        f"{_SENDER}test_receivers_that_hang_reset_or_redirect_while_alerts_fire_delay_no_other",
    ),
    "a disk fills": (
        "tests/consumer/test_disk.py::"
        "test_windows_are_stored_without_operations_from_the_second_mark_on",
        "tests/consumer/test_disk.py::test_nothing_is_read_while_nothing_can_be_written",
        "tests/store/disk/test_usage.py::test_operations_stop_before_batches",
    ),
    "the data directory is a file": (
        "tests/cli/test_supervisor_data_dir.py::test_file_as_data_directory_is_refused",
    ),
    "the queue of docker compose is asked without its password": (
        "tests/test_deployment.py::test_queue_of_compose_takes_batches_only_with_its_password",
    ),
    "a server over TLS that nobody vouches for": (
        f"{_QUEUE_TLS}test_batches_pass_over_tls_to_a_server_that_is_vouched_for",
        f"{_QUEUE_TLS}test_no_batch_goes_to_a_server_that_nobody_vouches_for",
        "tests/store/test_database_tls.py::test_server_that_nobody_vouches_for_is_refused",
    ),
    "every consumer is dead": (
        f"{_WATCH}test_killed_consumers_are_told_once_and_told_when_they_are_back",
        f"{_SERVICE_WATCH}test_dead_consumers_are_told_once_by_two_processes_and_once_when_they_are_back",
        f"{_SERVICE_WATCH}test_told_within_30_s_after_the_limit",
    ),
    "consumers are frozen, or alive without turning": (
        f"{_WATCH}test_frozen_consumers_make_the_canary_missing",
        f"{_SERVICE_WATCH}test_heartbeats_of_a_consumer_that_does_not_turn_are_no_work",
    ),
    "detectors find nothing": (
        f"{_WATCH}test_blind_detectors_make_the_canary_missing",
        f"{_SERVICE_WATCH}test_missing_canary_is_told_with_its_reason_and_found_again",
    ),
    "the whole service is dead: heartbeats stay away": (
        f"{_SERVICE_WATCH}test_heartbeats_stay_away_while_no_consumer_turns",
        f"{_SERVICE_WATCH}test_the_api_writes_heartbeats_and_does_not_send_them",
    ),
    "server away, frozen, refusing or answering nonsense as a training ends": (
        "tests/client/test_recorder.py::test_end_job_warns_once_and_returns_whatever_happens",
        "tests/torch/test_unharmed.py::test_no_fault_changes_exit_status_or_losses",
    ),
    "server never there": (
        "tests/client/sending/test_contact.py::"
        "test_rank_0_warns_once_within_seconds_and_says_what_to_do",
    ),
    "training killed": (
        f"{_ENDS}test_a_killed_process_is_reported_by_its_watcher_without_a_secret_in_its_command",
        "tests/consumer/test_shard_ends.py::"
        "test_a_job_of_which_one_rank_was_killed_and_nothing_more_comes_has_crashed",
    ),
    "training crashed": (
        f"{_ENDS}test_an_end_is_reported_once_and_has_its_own_exit_status",
        f"{_EXITS}test_a_crash_is_told_with_rank_host_and_exception_everywhere",
    ),
    "training preempted": (
        "tests/trace/test_exits.py::"
        "test_a_job_whose_ranks_were_all_asked_to_end_was_preempted_from_the_first_on",
        "tests/client/ending/test_signals_to_all.py::"
        "test_without_its_watcher_a_training_still_handles_sigterm_itself",
    ),
    "training forks": (
        f"{_ENDS}test_children_report_nothing_and_a_closed_recorder_has_finished_whatever_comes_then",
    ),
    "recorder's own code raises": (
        "tests/client/test_guard.py::test_an_error_of_its_own_ends_recording_with_one_warning",
    ),
    "a request asks for more time than it may have": (
        f"{_FUZZ}test_nested_brackets_are_found_with_a_parser_that_follows_them",
        f"{_FUZZ}test_rules_take_time_in_proportion_to_their_size",
        f"{_FUZZ}test_meta_files_take_time_in_proportion_to_their_size",
        f"{_FUZZ}test_hostile_bodies_hold_up_no_other_request",
        f"{_PLACES}test_questions_on_all_places_keep_no_page_and_no_push_waiting",
        f"{_PLACES}test_work_in_a_thread_ends_when_its_caller_hangs_up_and_frees_its_place",
    ),
}

REASONS: dict[int, str] = {
    30: "clocks of the workers' hosts belong to the diagnosis of causes",
    31: "the client reads a monotonic clock, so none goes back inside a step",
    42: "100,000 workers are measured by python -m benchmarks pipeline: no test is that large",
}
