"""Markdown tables, and how numbers look in them."""

import dataclasses

NOTHING_EVICTED = "†"
NOTHING_EVICTED_NOTE = "† nothing was evicted"


@dataclasses.dataclass
class Table:
    title: str
    header: list
    rows: list = dataclasses.field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        if not self.rows:
            return f"**{self.title}**: nothing measured.\n"
        lines = [f"**{self.title}**", "",
                 "| " + " | ".join(self.header) + " |",
                 "|" + "---|" * len(self.header)]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines) + "\n"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def evicted(share: float) -> str:
    return percent(share) + ("" if share > 0 else " " + NOTHING_EVICTED)


def signed(value: float, digits: int = 3) -> str:
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−")


def interval(low: float, high: float, show=signed) -> str:
    return f"{show(low)} … {show(high)}"


def share_of(hits: int, total: int, bounds: tuple) -> str:
    """"14/20 (48 … 85 %)"."""
    return (f"{hits}/{total} ({100 * bounds[0]:.0f} … "
            f"{100 * bounds[1]:.0f} %)")
