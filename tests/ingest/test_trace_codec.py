"""What is stored today is read by every later version."""

import base64

from app.ingest.trace_codec import unpack

# Three operations as the first release packed them.
OF_THE_FIRST_RELEASE = (
    "cmZo#mX=?Xn^?lQJUKt7G&irfYe{iQYC-eToYchP685DjC6xuKi)%^^mnKz~q!u4xW?*1kQk0mN4OPK_"
    "MFj`P@|1#j0*V+Jmll^Krl;aDhk<cfegVjSJZgCPmldZL#%HGBQNzfzC^s1@{~y!6j0_A*bCVE8U{S)t"
    "z_0@7+M<&9yke+9=XoD&+q^sls237MHl-%eAmU*F0v({K1%iwWt5Zsg5=%1k^AI{&F`dA`$OHf(BA<r"
)


def test_operations_of_the_first_release_are_read():
    table = unpack(base64.b85decode(OF_THE_FIRST_RELEASE))
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
