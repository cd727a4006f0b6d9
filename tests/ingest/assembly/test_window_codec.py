"""Windows stored by earlier versions stay readable."""

import base64
from dataclasses import replace

import numpy as np

from app.ingest.assembly.window_codec import pack_window, unpack_window

# Three operations as the first release packed them.
OF_THE_FIRST_RELEASE = (
    "cmZo#mX=?Xn^?lQJUKt7G&irfYe{iQYC-eToYchP685DjC6xuKi)%^^mnKz~q!u4xW?*1kQk0mN4OPK_"
    "MFj`P@|1#j0*V+Jmll^Krl;aDhk<cfegVjSJZgCPmldZL#%HGBQNzfzC^s1@{~y!6j0_A*bCVE8U{S)t"
    "z_0@7+M<&9yke+9=XoD&+q^sls237MHl-%eAmU*F0v({K1%iwWt5Zsg5=%1k^AI{&F`dA`$OHf(BA<r"
)


def test_operations_of_the_first_release_are_read():
    table = unpack_window(base64.b85decode(OF_THE_FIRST_RELEASE)).ops
    assert table.step.tolist() == [7, 7, 8]
    assert table.rank.tolist() == [0, 8, 8]
    assert table.dp_rank.tolist() == [0, 1, 1]
    assert table.stage.tolist() == [0, 0, 1]
    assert table.optype.tolist() == [0, 13, 15]
    assert table.seq_id.tolist() == [0, 1, 2]
    assert table.mc.tolist() == [0, -1, -1]
    assert table.mb_id.tolist() == [3, -1, -1]
    assert table.start_ns.tolist() == [10**18, 10**18 + 300, 10**18 + 70_000]
    assert table.duration_ns.tolist() == [5, 6, 7]


# The same with two optional columns, as format 2 was before the GPU columns.
OF_FORMAT_2 = (
    "f~IC~a&2LB0;gkdY;|pJbBv^ObY*aZrEFzkb94u#WOR9OWuts`F{NU8bY*kI3@EiP{U8Gw000000i<$aZfk?3Y-M3{"
    "bO5Dfba`-PqkMHSrDAz>Wpl&~D77#BAOjfy000OGr(|$na$#<3gQaX`VRLi<rDSw@aAl)>bup!4d30rS#0)64Fa00`"
    "82|tP0Rg3RbYW*@gQaX`VRLi<rDSw@aAl)>bup!4d30rS#0)64Fa00`82|tP00E|NaCCWaWrL+`Wnpu40HtJfd2nT;"
    "e04FUVtI6BbHofNwJ-f30~r7S01XeOb7gT~X=H<?Y-M3{bO5Dfba`-PqkMHSrDAz>Wpl&~D77#BAOjfy00033qHSY?"
    "rEFzkb9DcuWOR9OWuts`F{NU8bY*kI3@EiP{U8Gw000310HtkWUuk56rEFzkb9DcuWOR9OWuts`F{NU8bY*kI3@EiP"
    "{U8Gw000C40H||xVRCd|ZgYdBY-M3{bk7aowzH>X005<Aba`-PqdavqrDAz>Wpl(8D77#BAPivu0000004xCj0B{ij"
    "0IOtma$$67Z*E_1bAzR9Wnpu41*K$kd2nT;e04FUVtI6BbHofNwJ-f30~r7S009D~bZ={AZgYdBY-M3{bpNGfba`-P"
    "qdavorDAz>Wpl(2D77#BAO<l2009sH0001`VtI6BbAzR9Wnpu4|D|Mfd2nT;JasswVtI6BbHpJiwJ-f37{LGl00000"
    "000000T89s=l}o!0T89s=l}o!"
)


def test_format_2_without_gpu_columns_is_read():
    table = unpack_window(base64.b85decode(OF_FORMAT_2)).ops
    assert table.start_ns.tolist() == [10**18, 10**18 + 300, 10**18 + 70_000]
    assert table.tokens is not None
    assert table.bytes is not None
    assert table.tokens.tolist() == [4096, -1, -1]
    assert table.bytes.tolist() == [-1, 10**12, 10**12]
    assert (table.sm_clock_mhz, table.temperature_c) == (None, None)


def test_optional_columns_round_trip_and_absent_ones_stay_absent():
    first = unpack_window(base64.b85decode(OF_THE_FIRST_RELEASE)).ops
    extended = replace(first, tokens=np.array([4096, -1, -1]), temperature_c=np.array([-1, -1, 71]))
    again = unpack_window(pack_window(extended)).ops
    assert again.tokens is not None
    assert again.temperature_c is not None
    assert (again.tokens.tolist(), again.temperature_c.tolist()) == ([4096, -1, -1], [-1, -1, 71])
    assert (again.seq_len_sq, again.bytes, again.sm_clock_mhz) == (None, None, None)
