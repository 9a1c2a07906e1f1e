"""The shapes of the admin page's charts: numbers become rectangles and paths of an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The sizes of the viewBoxes of a chart and of a sparkline; the browser stretches them.
WIDTH, HEIGHT = 600, 120
SPARK_WIDTH, SPARK_HEIGHT = 120, 24
#: A sparkline of fewer points would be a spike, not a course.
_FEWEST_POINTS, _MOST_POINTS = 8, 60
#: More bars than this have no gaps between them, which would flicker.
_MOST_APART = 31


@dataclass(frozen=True)
class Bar:
    """One time step: its rectangle in the chart's units, and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    words: str


def scale_top(values: Sequence[int]) -> int:
    """Return the top of a chart: the smallest of 1, 2, 3, 4, 5, 6, 8 times a power of ten that holds all ``values``."""
    top, most = 1, max(values, default=0)
    while top < most:
        for factor in (2, 3, 4, 5, 6, 8, 10):
            if top * factor >= most:
                return top * factor
        top *= 10
    return top


def bars(values: Sequence[int], words: Sequence[str]) -> list[Bar]:
    """Return a bar for each of ``values`` that is not 0, with its tooltip from ``words``."""
    step, top = WIDTH / max(len(values), 1), scale_top(values)
    filled = 0.82 if len(values) <= _MOST_APART else 1.0
    made = []
    for place, (value, text) in enumerate(zip(values, words)):
        if value:
            height = max(HEIGHT * value / top, 1.5)  # so that even the smallest value is visible
            x = round(place * step, 2)
            width = round(round((place + filled) * step, 2) - x, 2)
            made.append(Bar(x, round(HEIGHT - height, 2), width, round(height, 2), text))
    return made


def spark(values: Sequence[int]) -> str:
    """Return the area under ``values`` as the data of an SVG path; empty if fewer than eight points are not 0."""
    together = max(-(-len(values) // _MOST_POINTS), 1)
    sums = [sum(values[start : start + together]) for start in range(0, len(values), together)]
    if sum(map(bool, sums)) < _FEWEST_POINTS:
        return ""
    step, most = SPARK_WIDTH / max(len(sums) - 1, 1), max(sums)
    points = " ".join(
        f"L{round(place * step, 1):g} {round(SPARK_HEIGHT - (SPARK_HEIGHT - 2) * value / most, 1):g}"
        for place, value in enumerate(sums)
    )
    return f"M0 {SPARK_HEIGHT} {points} L{SPARK_WIDTH} {SPARK_HEIGHT}Z"
