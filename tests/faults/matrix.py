"""Every row of the fault matrix except security: its tests, or why it has none.

Tests named `test_row_NN` are mostly in this directory; others are in the package that they test.
"""

_HERE = "tests/faults/"
_PROCESSES = f"{_HERE}test_processes.py::"
_QUEUE = f"{_HERE}test_queue.py::"
_DATABASE = f"{_HERE}test_database.py::"
_FULL_DISK = f"{_HERE}test_full_disk.py::"
_QUEUE_TLS = "tests/ingest/redis/test_queue_tls.py::"
_DATA = f"{_HERE}test_data.py::"
_STORE_FAULTS = "tests/store/test_database_faults.py::"
_QUEUE_FAULTS = "tests/ingest/redis/test_queue_faults.py::"
_ASSEMBLER = "tests/ingest/assembly/test_assembler.py::"
_SILENT_RANKS = "tests/consumer/test_run_cache_silent_ranks.py::"
_SENDER = "tests/consumer/test_sender.py::"
_LOCKED = "tests/consumer/test_sender_locked.py::"
_STORMS = "tests/consumer/test_alert_state_storms.py::"
_NOTIFICATIONS = f"{_HERE}test_notifications.py::"
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
    1: (
        f"{_PROCESSES}test_row_01_consumer_killed_at_any_point_loses_nothing",
        f"{_PROCESSES}test_row_01_shards_of_a_dead_consumer_are_taken_over_within_20_s",
    ),
    2: (f"{_PROCESSES}test_row_02_consumer_frozen_beyond_its_lease_commits_nothing",),
    3: (f"{_PROCESSES}test_row_03_api_killed_before_the_append_loses_no_acknowledged_batch",),
    4: (
        f"{_PROCESSES}test_row_04_append_by_an_api_killed_before_its_answer_has_one_effect",
        f"{_PROCESSES}test_row_04_append_with_a_lost_answer_has_one_effect",
    ),
    5: (f"{_PROCESSES}test_row_05_sigterm_under_load_with_a_frozen_reader_ends_within_10_s",),
    6: (f"{_QUEUE}test_row_06_killed_queue_loses_nothing",),
    7: (
        "tests/api/service/test_status_loss_warnings.py::test_start_is_refused_on_a_lossy_queue",
        "tests/consumer/test_run_cache_counts.py::test_missing_batch_number_counts_as_a_lost_batch",
    ),
    8: (f"{_QUEUE}test_row_08_wiped_queue_is_used_as_new_and_nothing_is_spurious",),
    9: (f"{_QUEUE}test_row_09_full_queue_refuses_batches_and_is_still_drained",),
    10: (
        f"{_QUEUE}test_row_10_queue_with_a_full_disk_loses_nothing",
        f"{_FULL_DISK}test_row_10_served_on_a_full_disk_goes_on_and_loses_nothing",
    ),
    11: (f"{_QUEUE}test_row_11_hanging_queue_refuses_batches_and_the_api_stays_healthy",),
    12: (f"{_QUEUE_FAULTS}test_failover_loses_no_batch_acknowledged_by_a_replica",),
    13: (f"{_QUEUE_FAULTS}test_no_command_touches_the_keys_of_two_shards",),
    14: (f"{_DATABASE}test_row_14_batches_accepted_without_a_database_are_analysed_later",),
    15: (f"{_DATABASE}test_row_15_commit_with_a_lost_answer_has_one_effect",),
    16: (f"{_DATABASE}test_row_16_killed_database_backend_loses_nothing",),
    17: (
        f"{_STORE_FAULTS}test_row_17_full_disk_is_unavailable_and_loses_no_committed_row",
        f"{_FULL_DISK}test_row_17_postgresql_on_a_full_disk_goes_on_and_loses_nothing",
    ),
    18: (
        f"{_DATABASE}test_row_18_commits_wait_for_a_locked_table_and_lose_nothing",
        f"{_STORE_FAULTS}test_row_18_idle_transaction_is_ended_and_releases_its_locks",
    ),
    19: (f"{_QUEUE}test_row_19_backlog_is_worked_off",),
    20: (
        f"{_PROCESSES}test_row_20_power_cut_of_every_process_loses_nothing",
        f"{_PROCESSES}test_row_20_consumer_waits_for_a_backend_that_starts_later",
    ),
    21: (
        f"{_SILENT_RANKS}test_set_clock_makes_no_rank_silent_and_closes_no_window",
        f"{_HERE}test_clock_jumps.py::test_row_21_clock_that_jumps_loses_nothing_and_alerts_nobody",
    ),
    22: (f"{_PROCESSES}test_row_22_api_out_of_file_descriptors_recovers_and_loses_nothing",),
    23: (
        f"{_ASSEMBLER}test_runaway_worker_hits_the_open_step_limit",
        f"{_ASSEMBLER}test_window_closes_early_at_the_operation_limit",
    ),
    24: (f"{_DATA}test_row_24_and_26_split_repeated_reordered_batches_give_right_windows",),
    25: (f"{_DATA}test_row_25_conflicting_batch_under_a_used_key_changes_no_window",),
    26: (
        "tests/ingest/assembly/test_assembler_properties.py::"
        "test_any_order_repetition_and_cutting_gives_the_same_windows",
        f"{_DATA}test_row_24_and_26_split_repeated_reordered_batches_give_right_windows",
    ),
    27: (f"{_ASSEMBLER}test_late_data_revises_a_closed_window",),
    28: (
        "tests/consumer/test_shard_windows.py::test_step_without_one_rank_is_analysed_and_names_the_rank",
    ),
    29: (f"{_SILENT_RANKS}test_job_without_further_batches_is_saved_as_stalled",),
    32: (f"{_DATA}test_row_32_and_36_resized_restart_from_a_checkpoint_is_a_new_run",),
    33: (f"{_ASSEMBLER}test_reused_batch_number_is_a_conflict_and_the_first_wins",),
    34: (f"{_DATA}test_row_34_skipped_step_numbers_appear_in_no_window",),
    35: (
        "tests/ingest/wire/test_codec_forms.py::test_only_steps_beyond_the_maximum_jump_are_refused",
    ),
    36: (f"{_DATA}test_row_32_and_36_resized_restart_from_a_checkpoint_is_a_new_run",),
    37: ("tests/ingest/wire/test_codec.py::test_a_row_out_of_bounds_is_named",),
    38: (
        "tests/consumer/test_commit_failures.py::"
        "test_batch_that_crashes_consumers_becomes_a_dead_letter_at_last",
    ),
    39: (
        "tests/ingest/wire/test_codec_forms.py::"
        "test_unknown_version_or_content_type_error_lists_the_known_ones",
    ),
    40: ("tests/api/routes/jobs/test_ops.py::test_random_bytes_never_give_a_5xx",),
    41: ("tests/ingest/wire/test_codec_forms.py::test_decompression_bomb_is_too_large",),
    43: (f"{_SILENT_RANKS}test_stalled_job_is_evicted_and_loaded_again",),
    44: ("tests/api/http/test_limits.py::test_active_jobs_of_a_project_are_limited",),
    45: (
        f"{_SENDER}test_row_45_hanging_receiver_times_out",
        f"{_SENDER}test_row_45_hanging_receiver_delays_no_other",
    ),
    46: (
        f"{_SENDER}test_row_46_refused_message_is_retried_after_its_delay_under_its_id",
        f"{_SENDER}test_row_46_refused_connection_and_failed_tls_are_recorded_and_retried",
        f"{_SENDER}test_row_46_message_fails_after_ten_attempts_in_a_day",
    ),
    47: (
        f"{_SENDER}test_row_47_a_redirect_is_a_failure_and_is_not_followed",
        f"{_SSRF}test_a_redirect_to_it_is_not_followed",
    ),
    48: (
        f"{_SENDER}test_row_48_receiver_answering_410_is_disabled_and_others_notified",
        f"{_SENDER}test_row_48_messages_to_a_disabled_receiver_fail_and_can_be_replayed",
    ),
    49: (
        f"{_SSRF}test_among_good_answers_it_is_refused",
        f"{_SSRF}test_a_name_that_changes_its_meaning_is_asked_for_once_and_then_refused",
    ),
    50: (
        f"{_SENDER}test_row_50_sender_crash_repeats_the_message_under_its_id",
        f"{_NOTIFICATIONS}test_row_50_consumer_killed_at_any_notification_point_loses_no_alert",
        f"{_NOTIFICATIONS}test_row_50_consumers_killed_at_random_lose_no_alert",
    ),
    51: (
        f"{_STORMS}test_row_51_flapping_value_notifies_at_most_every_five_minutes",
        f"{_STORMS}test_row_51_flapping_value_never_notifies_with_the_default_rules",
        f"{_STORMS}test_row_51_noise_around_both_thresholds_notifies_rarely",
    ),
    52: (
        f"{_STORMS}test_row_52_ten_thousand_slow_workers_give_few_small_messages",
        f"{_STORMS}test_row_52_host_alerts_mute_their_workers_and_are_counted",
        f"{_STORMS}test_row_52_ten_thousand_slow_workers_notify_once_by_default",
    ),
    53: (f"{_STORMS}test_row_53_consumer_restart_changes_no_notification",),
    54: (
        f"{_SENDER}test_row_54_message_silenced_before_its_claim_is_not_sent",
        f"{_SENDER}test_row_54_silenced_message_is_not_retried",
        f"{_SENDER}test_row_54_resolution_during_a_silence_is_notified_after_it",
        f"{_SENDER}test_row_54_partly_silenced_message_is_rewritten",
        f"{_SENDER}test_row_54_silence_that_begins_during_a_claim_drops_the_message",
    ),
    55: (f"{_SENDER}test_row_55_receiver_failing_for_a_day_is_disabled_and_outbox_bounded",),
    56: ("tests/client/test_webhook.py::test_message_replayed_later_is_refused",),
    57: (f"{_SENDER}test_row_57_success_status_of_a_receiver_is_trusted_and_saved",),
}

# What fails in Paceline itself or is turned against it, by name: such rows have no number.
OWN_FAULTS: dict[str, tuple[str, ...]] = {
    "secrets are searched for in database, files, logs, backup and command lines": (
        f"{_SECRET_SEARCH}test_no_secret_is_in_files_logs_backup_or_command_lines_of_serve",
        f"{_SECRET_SEARCH}test_no_secret_is_in_files_and_logs_of_separate_processes_on_postgresql",
        "tests/store/credentials/test_resealing.py::test_nothing_plain_stays_in_the_files_of_sqlite",
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
        f"{_RESTORE}test_backup_of_an_older_release_is_restored_and_its_secrets_are_encrypted",
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
        f"{_ENDS}test_a_killed_process_is_reported_by_its_watcher",
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
        f"{_ENDS}test_a_handler_of_the_training_still_decides_what_sigterm_does",
    ),
    "training forks": (f"{_ENDS}test_children_of_the_training_report_nothing_and_die_of_sigterm",),
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
