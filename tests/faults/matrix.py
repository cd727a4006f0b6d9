"""Every row of the fault matrix but those of security: its tests, or why it has none.

A row that its own words name is a test of this directory; the others stand where what they are
about is tested.
"""

_HERE = "tests/faults/"
_PROCESSES = f"{_HERE}test_processes.py::"
_QUEUE = f"{_HERE}test_queue.py::"
_DATABASE = f"{_HERE}test_database.py::"
_DATA = f"{_HERE}test_data.py::"
_STORE_FAULTS = "tests/store/test_database_faults.py::"
_QUEUE_FAULTS = "tests/ingest/redis/test_queue_faults.py::"
_ASSEMBLER = "tests/ingest/assembly/test_assembler.py::"
_SILENCE = "tests/consumer/test_run_cache_silent_ranks.py::"
_SENDER = "tests/consumer/test_sender.py::"
_STORMS = "tests/consumer/test_alert_state_storms.py::"
_TELLING = f"{_HERE}test_telling.py::"
_SSRF = "tests/alerts/guard/test_guard_ssrf.py::"

TESTS: dict[int, tuple[str, ...]] = {
    1: (
        f"{_PROCESSES}test_row_01_a_consumer_killed_at_any_point_loses_nothing",
        f"{_PROCESSES}test_row_01_the_shards_of_a_dead_consumer_are_taken_over_within_20_s",
    ),
    2: (f"{_PROCESSES}test_row_02_a_consumer_that_slept_through_its_lease_commits_nothing",),
    3: (f"{_PROCESSES}test_row_03_an_api_killed_before_the_append_has_promised_nothing",),
    4: (
        f"{_PROCESSES}test_row_04_an_append_whose_answer_dies_with_the_api_has_one_effect",
        f"{_PROCESSES}test_row_04_an_append_whose_answer_is_lost_on_its_way_has_one_effect",
    ),
    5: (f"{_PROCESSES}test_row_05_sigterm_under_load_with_a_frozen_reader_ends_well_within_10_s",),
    6: (f"{_QUEUE}test_row_06_a_killed_queue_loses_nothing",),
    7: (
        "tests/api/service/test_status_loss_warnings.py::test_start_is_refused_on_a_lossy_queue",
        "tests/consumer/test_run_cache_counts.py::test_missing_batch_number_counts_as_a_lost_batch",
    ),
    8: (f"{_QUEUE}test_row_08_a_wiped_queue_is_used_as_a_new_one_and_nothing_is_invented",),
    9: (f"{_QUEUE}test_row_09_a_full_queue_refuses_and_is_drained_though_it_is_full",),
    10: (f"{_QUEUE}test_row_10_a_queue_whose_disk_is_full_loses_nothing",),
    11: (f"{_QUEUE}test_row_11_a_queue_that_hangs_is_not_waited_for_and_the_api_stays_well",),
    12: (f"{_QUEUE_FAULTS}test_a_failover_loses_nothing_that_replicas_had_to_have",),
    13: (f"{_QUEUE_FAULTS}test_no_command_touches_the_keys_of_two_shards",),
    14: (f"{_DATABASE}test_row_14_while_the_database_is_down_batches_are_taken_and_then_analysed",),
    15: (f"{_DATABASE}test_row_15_a_commit_whose_outcome_nobody_knows_has_one_effect",),
    16: (f"{_DATABASE}test_row_16_one_killed_backend_takes_all_connections_and_loses_nothing",),
    17: (f"{_STORE_FAULTS}test_row_17_full_disk_is_unavailable_and_loses_no_committed_row",),
    18: (
        f"{_DATABASE}test_row_18_a_locked_table_is_waited_for_and_loses_nothing",
        f"{_STORE_FAULTS}test_row_18_idle_transaction_is_ended_and_releases_its_locks",
    ),
    19: (f"{_QUEUE}test_row_19_a_backlog_waits_and_is_worked_off",),
    20: (
        f"{_PROCESSES}test_row_20_a_power_cut_of_everything_at_once_loses_nothing",
        f"{_PROCESSES}test_row_20_a_consumer_waits_for_what_starts_after_it",
    ),
    21: (f"{_SILENCE}test_set_clock_makes_no_rank_silent_and_closes_no_window",),
    22: (f"{_PROCESSES}test_row_22_an_api_out_of_file_descriptors_refuses_and_goes_on",),
    23: (
        f"{_ASSEMBLER}test_a_worker_that_runs_away_cannot_make_us_hold_everything",
        f"{_ASSEMBLER}test_a_window_that_would_not_fit_into_memory_closes_earlier",
    ),
    24: (
        f"{_DATA}test_row_24_and_26_batches_in_pieces_twice_and_in_any_order_make_the_same_windows",
    ),
    25: (f"{_DATA}test_row_25_another_batch_under_the_same_key_changes_no_window",),
    26: (
        "tests/ingest/assembly/test_assembler_properties.py::"
        "test_any_order_repetition_and_cutting_gives_the_same_windows",
        f"{_DATA}test_row_24_and_26_batches_in_pieces_twice_and_in_any_order_make_the_same_windows",
    ),
    27: (f"{_ASSEMBLER}test_late_data_revises_a_closed_window",),
    28: (
        "tests/consumer/test_shard_windows.py::test_step_without_one_rank_is_skipped_and_names_the_rank",
    ),
    29: (f"{_SILENCE}test_job_without_further_batches_is_saved_as_stalled",),
    32: (
        f"{_DATA}test_row_32_and_36_a_restart_from_a_checkpoint_in_another_size_is_a_run_of_its_own",
    ),
    33: (
        f"{_ASSEMBLER}test_the_same_number_with_other_operations_is_a_conflict_and_the_first_wins",
    ),
    34: (f"{_DATA}test_row_34_steps_that_never_were_are_in_no_window",),
    35: (
        "tests/ingest/wire/test_codec_forms.py::test_a_step_far_above_the_newest_is_refused_and_one_below_is_not",
    ),
    36: (
        f"{_DATA}test_row_32_and_36_a_restart_from_a_checkpoint_in_another_size_is_a_run_of_its_own",
    ),
    37: ("tests/ingest/wire/test_codec.py::test_a_row_out_of_bounds_is_named",),
    38: (
        "tests/consumer/test_commit_failures.py::"
        "test_batch_that_crashes_consumers_becomes_a_dead_letter_at_last",
    ),
    39: ("tests/ingest/wire/test_codec.py::test_another_version_is_refused_by_number",),
    40: ("tests/api/routes/jobs/test_ops.py::test_random_bytes_never_give_a_5xx",),
    41: ("tests/ingest/wire/test_codec_forms.py::test_a_bomb_is_too_large",),
    43: (f"{_SILENCE}test_stalled_job_is_evicted_and_loaded_again",),
    44: ("tests/api/http/test_limits.py::test_active_jobs_of_a_project_are_limited",),
    45: (
        f"{_SENDER}test_row_45_hanging_receiver_times_out",
        f"{_SENDER}test_row_45_hanging_receiver_delays_no_other",
    ),
    46: (
        f"{_SENDER}test_row_46_refused_message_is_retried_after_its_delay_under_its_id",
        f"{_SENDER}test_row_46_refused_connection_and_failed_tls_are_recorded",
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
        f"{_TELLING}test_row_50_a_consumer_killed_at_any_point_of_telling_loses_no_alert",
        f"{_TELLING}test_row_50_consumers_killed_at_random_lose_no_alert",
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
    56: ("tests/client/test_webhook.py::test_a_message_that_is_sent_again_later_is_refused",),
    57: (f"{_SENDER}test_row_57_success_status_of_a_receiver_is_trusted_and_saved",),
}

REASONS: dict[int, str] = {
    30: "clocks of the workers' hosts belong to the diagnosis of causes",
    31: "the client reads a monotonic clock, so none goes back inside a step",
    42: "100,000 workers are measured by python -m benchmarks pipeline: no test is that large",
}
