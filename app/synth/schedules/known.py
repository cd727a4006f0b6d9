"""Every schedule by its name."""

from app.synth.schedules.gpipe import GPipe
from app.synth.schedules.interleaved import Interleaved
from app.synth.schedules.one_f_one_b import OneFOneB
from app.synth.schedules.schedule import Schedule
from app.synth.schedules.zero_bubble import ZeroBubble

SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule for schedule in (GPipe(), OneFOneB(), Interleaved(), ZeroBubble())
}
