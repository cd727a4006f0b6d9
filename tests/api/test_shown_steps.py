import pytest

from app.api.shown_steps import MAX_CELLS, recent_step_s, with_other_windows
from app.store import windows
from tests.api.server import KEY, window_record

pytestmark = pytest.mark.anyio


async def test_of_a_large_job_the_newest_steps_and_the_windows_own_are_joined(api):
    await api.register()
    for first_step in (0, 2, 4, 6):
        api.save_window(window_record(first_step))
    with api.store.read() as conn:
        shown = windows.get(conn, KEY, "1-0", per_step=True)
        shown["job"] |= {"dp_size": MAX_CELLS // 3, "pp_size": 1}
        joined = with_other_windows(conn, KEY, shown, range(8))
    assert joined["steps"] == [0, 1, 5, 6, 7]
    assert len(joined["per_step"]["worker_slowdown"]) == 5


async def test_what_a_step_takes_is_not_known_before_the_first_one(api):
    await api.register()
    with api.store.read() as conn:
        assert recent_step_s(conn, KEY, 1) is None
    api.save_window(window_record(0))
    with api.store.read() as conn:
        assert recent_step_s(conn, KEY, 1) == pytest.approx(1.3)
        assert recent_step_s(conn, KEY, 2) == pytest.approx(1.3)
