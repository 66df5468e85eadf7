"""Charts over time of measured quantities: as one SVG file, and in characters for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Dict, List, Sequence, Tuple

import numpy as np

WIDTH, HEIGHT = 900, 150
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 28, 24
# Time is cut into this many pieces, and a line shows the smallest and the largest value in each.
PIECES = 400
# The size of a chart in characters, and the marks of its lines.
COLUMNS, ROWS = 64, 11
MARKS = "*o+x#@%&"
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8f5aa5", "#b98b00", "#4f6d7a", "#d1495b", "#00798c")
Line = Tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Chart:
    title: str
    lines: Dict[str, Line]  # name -> (seconds, values)


def _most(lines: Dict[str, Line]) -> float:
    """The top of the vertical axis, which begins at 0."""
    return max((max(values) for _, values in lines.values()), default=1.0) * 1.05 or 1.0


def _end(end_s: float) -> str:
    return f"{end_s / 60:.1f} min" if end_s >= 100 else f"{end_s:g} s"


def _points(line: Line, end_s: float, most: float) -> str:
    times, values = np.asarray(line[0], float), np.asarray(line[1], float)
    piece = np.minimum((times / end_s * PIECES).astype(int), PIECES - 1)
    points: List[str] = []
    for number in np.unique(piece):
        inside = values[piece == number]
        x = LEFT + (number + 0.5) / PIECES * (WIDTH - LEFT - RIGHT)
        for value in dict.fromkeys((inside.min(), inside.max())):
            points.append(f"{x:.1f},{HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM):.1f}")
    return " ".join(points)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(text)}</text>'


def _chart(chart: Chart, end_s: float, y: int) -> str:
    lines = {name: line for name, line in chart.lines.items() if len(line[0])}
    most = _most(lines)
    right = 'text-anchor="end"'
    out = [f'<g transform="translate(0 {y})">', _text(LEFT, 16, chart.title, 'font-weight="bold"')]
    out.append(_text(LEFT - 6, TOP + 8, f"{most:.3g}", right) + _text(LEFT - 6, HEIGHT - BOTTOM, "0", right))
    out.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>')
    out.append(_text(WIDTH - RIGHT, HEIGHT - 8, _end(end_s), right))
    x = LEFT + 330
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        out.append(f'<polyline points="{_points(line, end_s, most)}" fill="none" stroke="{colour}"/>')
        out.append(_text(x, 16, name, f'fill="{colour}"'))
        x += 10 + 7 * len(name)
    return "\n".join([*out, "</g>"])


def svg(heading: str, charts: Sequence[Chart], end_s: float) -> str:
    height = 30 + HEIGHT * len(charts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(LEFT, 20, heading, 'font-size="14"'),
        *(_chart(chart, max(end_s, 1e-3), 30 + HEIGHT * number) for number, chart in enumerate(charts)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def in_characters(chart: Chart, end_s: float) -> List[str]:
    """At most as many lines as there are MARKS. Where they meet, the first one is shown."""
    most = _most(chart.lines)
    rows = [[" "] * COLUMNS for _ in range(ROWS)]
    middles_s = (np.arange(COLUMNS) + 0.5) / COLUMNS * end_s
    for mark, (times, values) in reversed(list(zip(MARKS, chart.lines.values()))):
        for column, value in enumerate(np.interp(middles_s, times, values, left=np.nan, right=np.nan)):
            if np.isfinite(value):
                rows[ROWS - 1 - min(int(value / most * ROWS), ROWS - 1)][column] = mark
    labels = [f"{most:.3g}", *[""] * (ROWS - 1)]
    return [
        f"{chart.title}:  " + "   ".join(f"{mark} {name}" for mark, name in zip(MARKS, chart.lines)),
        *(f"{label:>6} |{''.join(row)}".rstrip() for label, row in zip(labels, rows)),
        f"{'0':>6} +{'-' * COLUMNS}",
        f"{'':8}0 s{_end(end_s):>{COLUMNS - 3}}",
    ]
