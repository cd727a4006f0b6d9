"""Compare two results figure by figure, naming the one that differs."""

import math


def agree(
    got: object, want: object, where: str, *, relative: float, absolute: float = 1e-12
) -> None:
    """Fail with the figure's name where a wanted JSON value differs; extra values are allowed."""
    if isinstance(want, dict):
        assert isinstance(got, dict), where
        assert set(want) <= set(got), where
        for name, value in want.items():
            agree(got[name], value, f"{where}.{name}", relative=relative, absolute=absolute)
    elif isinstance(want, list):
        assert isinstance(got, list), where
        assert len(got) == len(want), where
        for position, value in enumerate(want):
            agree(
                got[position], value, f"{where}[{position}]", relative=relative, absolute=absolute
            )
    elif want is None:
        assert got is None, where
    else:
        assert isinstance(got, float), where
        assert isinstance(want, float), where
        assert math.isclose(got, want, rel_tol=relative, abs_tol=absolute), (where, got, want)
