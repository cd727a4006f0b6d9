"""Names in foreign files: known ones, and what is kept of the others."""

from app.trace.readers.importing import ImportOptions, NameMap, NameMeaning


def test_unknown_names_are_truncated():
    names = NameMap(ImportOptions(), {"fwd": ("forward-compute",)})
    assert names.meaning("fwd") == NameMeaning((0,))
    for number in range(3):
        name = "x" * 1_000_000 + str(number)
        assert names.meaning(name) is None
        names.count_unknown(name, times=2)
    assert {each: len(each) for each in names.unknown} == {"x" * 60: 60}
    assert f"6 operations have a name that is none, 6 of '{'x' * 60}'" in (
        names.missing("operations")[0].what
    )
