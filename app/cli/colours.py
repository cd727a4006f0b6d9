"""The slowdown scale of every heatmap, in a terminal's colours."""

from bisect import bisect_right

# The dark theme's stops (design: slowdown scale), in red, green and blue; the domain is fixed.
_STOPS: tuple[tuple[float, tuple[int, int, int]], ...] = (
    (1.02, (0x26, 0x2B, 0x32)),
    (1.05, (0x43, 0x38, 0x2A)),
    (1.10, (0x6B, 0x4A, 0x22)),
    (1.20, (0xAE, 0x65, 0x1D)),
    (1.30, (0xE5, 0x86, 0x38)),
    (1.40, (0xFF, 0xB2, 0x64)),
    (1.50, (0xFF, 0xE6, 0xBC)),
)
_INK_ON_DARK = "#ECEEF2"
_INK_ON_BRIGHT = "#0D0F12"
# Nothing below this stands out, and a bar in the scale's ground colour could not be seen.
_QUIET_BELOW = 1.05


def colour(slowdown: float) -> tuple[int, int, int]:
    """Red, green and blue of a slowdown; 1.5 and over look alike, 1.02 and under too."""
    above = bisect_right([at for at, _ in _STOPS], slowdown)
    if above == 0:
        return _STOPS[0][1]
    if above == len(_STOPS):
        return _STOPS[-1][1]
    (low, dark), (high, bright) = _STOPS[above - 1], _STOPS[above]
    share = (slowdown - low) / (high - low)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(dark, bright, strict=True))
    return red, green, blue


def cell_style(slowdown: float) -> str:
    """Ground and ink of a heatmap cell, with enough contrast between them."""
    red, green, blue = colour(slowdown)
    is_bright = 0.299 * red + 0.587 * green + 0.114 * blue > 120
    ink = _INK_ON_BRIGHT if is_bright else _INK_ON_DARK
    return f"{ink} on #{red:02x}{green:02x}{blue:02x}"


def share_style(slowdown: float) -> str:
    """Ink of a bar."""
    if slowdown < _QUIET_BELOW:
        return "dim"
    return "#{:02x}{:02x}{:02x}".format(*colour(max(slowdown, 1.2)))


def full_share(slowdown: float) -> float:
    """How full a bar is: empty at 1, full at the end of the scale."""
    return min(max((slowdown - 1.0) / (_STOPS[-1][0] - 1.0), 0.0), 1.0)
