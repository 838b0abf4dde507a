"""Text of numbers and tables: percentages, intervals, and the table type with its formats.

All tables and pages are written with these functions or with escaping templates (`templates/`).
Exception: files for harnesses (`jobs/harness`), in which replies must be byte-identical.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tango_core.metrics import Comparison, Estimate
from tango_core.printable import printable

# Text that spreadsheets interpret as a formula, also after spaces and as full-width characters.
_FORMULA = re.compile("^\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*%?|[+-]|[+-]?(inf|nan)")
# Start of a tag, a comment or a link in angle brackets; "<0.001" does not match.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_MARKDOWN = str.maketrans({"\\": r"\\", "|": r"\|"})
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "\N{MINUS SIGN}": "$-$",
        "<": "$<$",
        ">": "$>$",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "[": "{[}",  # at the start of a row it would be an argument of the previous \\
        "]": "{]}",
        **{char: f"\\{char}" for char in "%&_#${}"},
    }
)


def csv_field(value: object) -> object:
    """Make a CSV field that no spreadsheet interprets as a formula; numbers are unchanged.

    A string that starts like a formula gets an apostrophe prefix, which marks text in spreadsheets.
    """
    if not isinstance(value, str):
        return value
    text = printable(value).replace("\r\n", "\n").replace("\r", "\n")  # quoted by the CSV writer
    is_formula = _FORMULA.search(text) and not _NUMBER.fullmatch(text.strip())
    return f"'{text}" if is_formula else text


def markdown_text(text: str) -> str:
    """Escape text for one line of Markdown: no tags, links, images or column separators."""
    literal = _one_line(text).translate(_MARKDOWN).replace("](", r"]\(")
    return _TAG.sub(r"\\<", literal)


class Html(str):
    """Text that is HTML already; templates and `escaped` leave it as it is."""

    def __html__(self) -> str:
        """The text, as templates ask for it."""
        return str(self)


def escaped(value: object) -> Html:
    """Escape text for HTML."""
    return value if isinstance(value, Html) else Html(html.escape(printable(str(value))))


def latex_text(text: str) -> str:
    """Escape text for LaTeX."""
    return _one_line(text).translate(_LATEX)


def _one_line(text: str) -> str:
    """Collapse white space to single spaces and remove control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in printable(text)).split())


DASH = "-"

_NARROWEST = 6


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent without the % sign; a dash for `None`."""
    return DASH if share is None else f"{100 * share:.{digits}f}"


def points(share: float | None) -> str:
    """A difference of shares in percentage points, with + or a minus sign."""
    return DASH if share is None else f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def milliseconds(value: float | None) -> str:
    """A duration in milliseconds with about three digits."""
    if value is None:
        return DASH
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio: float | None) -> str:
    """A speed-up factor; a dash for `None`."""
    return DASH if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def estimate_percent(estimate: Estimate | None) -> str:
    """The value of an estimate in percent, without its interval; a dash for `None`."""
    return percent(None if estimate is None else estimate.value)


def interval(estimate: Estimate | None, unknown: str = "") -> str:
    """Both ends of an estimate's interval in percent."""
    if estimate is None:
        return unknown
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def difference(paired: Comparison | None) -> str:
    """A paired difference in points; a dash for `None`."""
    return points(paired.difference if paired else None)


def difference_with_interval(paired: Comparison | None) -> str:
    """A paired difference in points with its interval, or why that is missing."""
    if paired is None:
        return DASH
    ends = f"{points(paired.low)} to {points(paired.high)}"
    return f"{difference(paired)} ({'too few clips' if paired.too_few_clips else ends})"


def corrected_p(value: float | None) -> str:
    """A p value, corrected for multiple comparisons, in the style of papers; a dash for `None`."""
    return DASH if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def p_value(paired: Comparison | None) -> str:
    """The p value of a difference, with two digits from 0.1; a dash for `None`."""
    value = paired.p_value if paired else None
    return f"{value:.2f}" if value is not None and value >= 0.1 else corrected_p(value)


def detectable(paired: Comparison | None) -> str:
    """The smallest difference detectable with 80 % power, in points."""
    return percent(paired.detectable_difference if paired else None)


def markdown_notes(notes: Iterable[str]) -> list[str]:
    """Sentences to print under a Markdown table."""
    return [markdown_text(note) for note in notes]


def latex_notes(notes: Iterable[str]) -> list[str]:
    """LaTeX comments, one line per sentence."""
    return [f"% {' '.join(note.split())}" for note in notes]


@dataclass(frozen=True)
class Table:
    """Rows under named columns, written as Markdown, CSV, LaTeX or plain text.

    Attributes:
        header: Names of the columns.
        rows: Rows as long as the header; strings, or any values in a table for `csv`.
        text_columns: Number of leading text columns; the others are numbers, right-aligned.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    text_columns: int = 1

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]]) -> Table:
        """Build a table from mappings that have the same keys."""
        return cls(list(rows[0]) if rows else [], [list(row.values()) for row in rows])

    def without(self, *names: str) -> Table:
        """The table without some of its columns."""
        kept = [at for at, column in enumerate(self.header) if column not in names]
        header, *rows = ([row[at] for at in kept] for row in (self.header, *self.rows))
        return Table(header, rows, self.text_columns)

    def __html__(self) -> Html:
        """The table, as templates ask for it."""
        return self.html()

    def html(self) -> Html:
        """An HTML table; the first column names its rows, and `Html` values stay as they are."""
        kinds = [' class="text"'] * self.text_columns
        kinds += [""] * (len(self.header) - self.text_columns)
        columns = zip(kinds, self.header, strict=True)
        head = "".join(f'<th scope="col"{kind}>{escaped(name)}</th>' for kind, name in columns)
        lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
        for first, *others in self.rows:
            values = zip(kinds[1:], others, strict=True)
            texts = "".join(f"<td{kind}>{escaped(value)}</td>" for kind, value in values)
            lines.append(f'<tr><th scope="row">{escaped(first)}</th>{texts}</tr>')
        return Html("\n".join([*lines, "</tbody></table>"]))

    def markdown(self) -> str:
        """A GitHub-flavoured Markdown table."""
        marks = ["---"] * self.text_columns + ["---:"] * (len(self.header) - self.text_columns)
        escaped = [[markdown_text(text) for text in row] for row in (self.header, *self.rows)]
        lines = (escaped[0], marks, *escaped[1:])
        return "\n".join("| " + " | ".join(row) + " |" for row in lines)

    def csv(self) -> str:
        """A CSV file; `None` becomes an empty field, and formulas are escaped."""
        stream = io.StringIO()
        rows = ([csv_field(value) for value in row] for row in (self.header, *self.rows))
        csv.writer(stream, lineterminator="\n").writerows(rows)
        return stream.getvalue()

    def latex(self, above: Sequence[str] = (), sections: Collection[int] = (0,)) -> str:
        """A LaTeX `tabular` with the rules of the booktabs package.

        Args:
            above: Lines between the top rule and the header.
            sections: Indices of the rows with a rule above them.
        """
        letters = "l" * self.text_columns + "r" * (len(self.header) - self.text_columns)
        lines = [f"\\begin{{tabular}}{{{letters}}}", "\\toprule", *above]
        for number, row in enumerate((self.header, *self.rows), -1):
            lines += ["\\midrule"] * (number in sections)
            lines.append(" & ".join(map(latex_text, row)) + r" \\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])

    def plain(
        self,
        *,
        right: Collection[str] | None = None,
        max_width: int | None = None,
        shrink: Collection[str] | None = None,
        rule: bool = False,
    ) -> list[str]:
        """Plain text: the header, and one line per row.

        Args:
            right: Names of right-aligned columns; `None` for all but the first.
            max_width: Characters per line; `None` for no limit.
            shrink: Names of columns that are shortened to fit, the widest first, to six characters
                at least; `None` for the first.
            rule: Whether a line separates the header from the rows.
        """
        first = {self.header[0]}
        shrink = first if shrink is None else shrink
        right = set(self.header) - first if right is None else right
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        flexible = [at for at, name in enumerate(self.header) if name in shrink]
        while max_width is not None and _total(widths) > max_width:
            at = max(flexible, key=widths.__getitem__)
            if widths[at] <= _NARROWEST:
                break
            widths[at] -= 1
        sides = [">" if name in right else "<" for name in self.header]
        lines = []
        for row in (self.header, *self.rows):
            columns = zip(row, sides, widths, strict=True)
            texts = (f"{shortened(text, width):{side}{width}}" for text, side, width in columns)
            lines.append("  ".join(texts).rstrip())
        if rule:
            lines.insert(1, "  ".join("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * one for one in widths))
        return lines

    @property
    def width(self) -> int:
        """Characters of the longest line of plain text."""
        return max(map(len, self.plain()))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def shortened(text: str, width: int) -> str:
    """Shorten a string by cutting out its middle, because names of cells differ at their ends."""
    if len(text) <= width:
        return text
    end = max(0, (width - 1) // 2)
    return f"{text[: max(0, width - 1 - end)]}…{text[len(text) - end :]}"
