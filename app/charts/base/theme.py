"""Colours of the charts in both themes, and the one slowdown scale that every heatmap uses."""

from bisect import bisect_right
from dataclasses import dataclass

# Slowdown at each colour stop. The domain is fixed: a cell's colour means the same in every job.
SCALE_STOPS = (1.0, 1.02, 1.05, 1.10, 1.20, 1.30, 1.40, 1.50)
SCALE_MIN, SCALE_MAX = SCALE_STOPS[0], SCALE_STOPS[-1]

# Of text, by WCAG level AA; black or white reaches it on any background.
MIN_CONTRAST = 4.5


@dataclass(frozen=True, slots=True)
class Theme:
    """Colour tokens of one theme, as CSS colours; `scale` has one per `SCALE_STOPS`."""

    name: str
    surface: str
    well: str
    line: str
    line2: str
    accent: str
    ink: str
    ink2: str
    ink3: str
    lost: str
    lost_area: str
    ok: str
    ok_area: str
    rec: str
    sim: str
    fwd: str
    bwd: str
    xfer: str
    upd: str
    wait: str  # hatch only
    on_fwd: str  # text on fwd; on bwd it is white
    scale: tuple[str, ...]

    @property
    def colorscale(self) -> list[list[float | str]]:
        """The slowdown scale as Plotly wants it: positions 0..1 over the fixed domain."""
        span = SCALE_MAX - SCALE_MIN
        return [
            [round((stop - SCALE_MIN) / span, 6), colour]
            for stop, colour in zip(SCALE_STOPS, self.scale, strict=True)
        ]

    def colour_at(self, slowdown: float) -> str:
        """The scale's colour at a slowdown, held at the ends of the domain."""
        value = min(max(slowdown, SCALE_MIN), SCALE_MAX)
        upper = min(bisect_right(SCALE_STOPS, value), len(SCALE_STOPS) - 1)
        low, high = SCALE_STOPS[upper - 1], SCALE_STOPS[upper]
        return _mix(self.scale[upper - 1], self.scale[upper], (value - low) / (high - low))

    def text_on(self, slowdown: float) -> str:
        """Ink or surface, or what they come near to, to be read on the colour at a slowdown."""
        ground = self.colour_at(slowdown)
        colours = (self.ink, self.surface, "#000000", "#FFFFFF")
        return next(text for text in colours if contrast(text, ground) >= MIN_CONTRAST)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG defines it, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in (channel / 255 for channel in bytes.fromhex(colour[1:]))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _mix(first: str, second: str, share: float) -> str:
    channels = zip(bytes.fromhex(first[1:]), bytes.fromhex(second[1:]), strict=True)
    return f"#{bytes(round(a * (1 - share) + b * share) for a, b in channels).hex().upper()}"


LIGHT = Theme(
    name="light",
    surface="#FFFFFF",
    well="#F1F3F5",
    line="#E2E5EA",
    line2="#C5CBD3",
    accent="#3D4FC4",
    ink="#14171C",
    ink2="#454D58",
    ink3="#646D79",
    lost="#D4551F",
    lost_area="rgba(212,85,31,0.13)",
    ok="#17774F",
    ok_area="rgba(23,119,79,0.13)",
    rec="#20252D",
    sim="#7C8591",
    fwd="#3F6FCB",
    bwd="#27408B",
    xfer="#12807C",
    upd="#8C5CB3",
    wait="#B9C0C9",
    on_fwd="#FFFFFF",
    scale=("#E9ECEF", "#E9ECEF", "#F2E3C6", "#F5CF8F", "#EF9F45", "#DB6A22", "#B23A18", "#741A1A"),
)

DARK = Theme(
    name="dark",
    surface="#15181D",
    well="#1D2127",
    line="#272C34",
    line2="#3D4550",
    accent="#97A5FF",
    ink="#ECEEF2",
    ink2="#B4BCC7",
    ink3="#8B95A2",
    lost="#FF8B4E",
    lost_area="rgba(255,139,78,0.17)",
    ok="#5AC698",
    ok_area="rgba(90,198,152,0.17)",
    rec="#E4E7EC",
    sim="#818B98",
    fwd="#86AEF7",
    bwd="#4F6FCC",
    xfer="#3FB8AE",
    upd="#BB92E4",
    wait="#4A525D",
    on_fwd="#0D0F12",
    scale=("#262B32", "#262B32", "#43382A", "#6B4A22", "#AE651D", "#E58638", "#FFB264", "#FFE6BC"),
)

THEMES: dict[str, Theme] = {theme.name: theme for theme in (LIGHT, DARK)}
