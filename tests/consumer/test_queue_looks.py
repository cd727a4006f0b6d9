from app.consumer.queue_looks import QueueLooks


def test_entries_came_before_the_first_look_that_saw_them():
    looks = QueueLooks(100.0)
    looks.look(oldest="5-0", newest="7-0", now_s=101.0)
    looks.look(oldest="5-0", newest="9-0", now_s=102.0)
    came_s = [looks.came_s(entry, 110.0) for entry in ("5-0", "7-0", "8-3", "9-1")]
    assert came_s == [101.0, 101.0, 102.0, 110.0]
    assert (looks.taken_s, looks.has_caught_up) == (100.0, False)


def test_all_is_taken_up_to_the_last_look_that_saw_nothing_of_what_waits():
    looks = QueueLooks(100.0)
    for second, newest in enumerate(("7-0", "9-0", "9-5")):
        looks.look(oldest="5-0", newest=newest, now_s=101.0 + second)
    looks.look(oldest="9-1", newest="12-0", now_s=104.0)
    assert (looks.taken_s, looks.has_caught_up, looks.is_empty) == (102.0, True, False)
    looks.look(oldest=None, newest="12-0", now_s=105.0)
    assert (looks.taken_s, looks.is_empty) == (105.0, True)


def test_a_wiped_server_begins_its_ids_again():
    looks = QueueLooks(100.0)
    looks.look(oldest="900-0", newest="900-0", now_s=101.0)
    looks.look(oldest="3-0", newest="3-0", now_s=102.0)
    assert looks.came_s("3-0", 110.0) == 102.0
