"""Line plots as SVG, written by hand: no library, and readable diffs."""

import html
import math

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 40, 50
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
           "#000000", "#999999", "#882255", "#117733")
MARKS = ("circle", "square", "diamond", "triangle")


def ticks(low: float, high: float, count: int = 5) -> list:
    """Round numbers that span low..high."""
    span = high - low or 1.0
    step = 10.0 ** math.floor(
        math.log10(span / count))
    for factor in (1, 2, 2.5, 5, 10):
        if span / (step * factor) <= count:
            step *= factor
            break
    first = int(low / step) - 1
    found = [first * step + i * step for i in range(count + 5)]
    return [round(t, 10) for t in found if low - 1e-9 <= t <= high + 1e-9]


def mark(kind: str, x: float, y: float, colour: str) -> str:
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    shapes = {"square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
              "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
              "triangle": ((0, -5), (5, 4), (-5, 4))}
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in shapes[kind])
    return f'<polygon points="{points}" fill="{colour}"/>'


def plot(lines: dict, *, title: str, x_label: str, y_label: str,
         y_range=None) -> str:
    """`lines`: name -> points (x, y, low, high), low..high the interval."""
    points = [p for line in lines.values() for p in line]
    if not points:
        return ""
    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    if y_range:
        y_low, y_high = y_range
    else:
        y_low = min(min(p[1] for p in points), 0.0)
        y_high = max(p[1] for p in points)
        margin = 0.08 * (y_high - y_low or 1.0)
        y_low, y_high = y_low - margin, y_high + margin
    pad = 0.03 * (x_high - x_low or 1.0)
    x_low, x_high = x_low - pad, x_high + pad

    def sx(x):
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def sy(y):
        y = min(max(y, y_low), y_high)
        return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (
            HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} '
           f'{HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="22" font-size="15">{html.escape(title)}'
           '</text>']
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for t in ticks(y_low, y_high):
        out.append(f'<line x1="{LEFT}" x2="{right}" y1="{sy(t):.1f}" '
                   f'y2="{sy(t):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{sy(t) + 4:.1f}" '
                   f'text-anchor="end">{t:.3g}</text>')
    for t in ticks(x_low, x_high):
        out.append(f'<text x="{sx(t):.1f}" y="{bottom + 18}" '
                   f'text-anchor="middle">{100 * t:.0f} %</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" '
               'stroke="#333"/>')
    out.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" '
               f'text-anchor="middle">{html.escape(x_label)}</text>')
    out.append(f'<text transform="translate(16 {(TOP + bottom) / 2}) '
               f'rotate(-90)" text-anchor="middle">{html.escape(y_label)}'
               '</text>')
    for index, (name, line) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        kind = MARKS[index % len(MARKS)]
        line = sorted(line)
        path = " ".join(f"{sx(p[0]):.1f},{sy(p[1]):.1f}" for p in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                   'stroke-width="2"/>')
        for x, y, low, high in line:
            out.append(f'<line x1="{sx(x):.1f}" x2="{sx(x):.1f}" '
                       f'y1="{sy(low):.1f}" y2="{sy(high):.1f}" '
                       f'stroke="{colour}" stroke-opacity="0.35"/>'
                       + mark(kind, sx(x), sy(y), colour))
        y = TOP + 14 + 20 * index
        out.append(mark(kind, right + 16, y - 4, colour)
                   + f'<text x="{right + 28}" y="{y}">{html.escape(name)}'
                   '</text>')
    return "\n".join(out) + "\n</svg>\n"
