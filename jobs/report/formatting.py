"""Text of numbers and tables: percentages, intervals, Markdown, CSV, LaTeX, plain text.

Every writer of a table or a page goes through one of these, or through a template that escapes
(`templates/`). The files of harnesses (`jobs/harness`) are the exception: there a reply must stay
as it was, byte for byte.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence

from jobs.results.quantities import Comparison
from tango_core.metrics import Estimate
from tango_core.printable import printable

# What a spreadsheet takes for a formula, also behind spaces, and in the forms of full width.
_FORMULA = re.compile("^\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*%?|[+-]|[+-]?(inf|nan)")
# The beginning of a tag, a comment or a link in angle brackets; "<0.001" is none.
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
        "[": "{[}",  # in front of a row it would be an argument of the \\ before
        "]": "{]}",
        **{char: f"\\{char}" for char in "%&_#${}"},
    }
)


def csv_field(value: object) -> object:
    """A field of a CSV file that no spreadsheet takes for a formula; numbers stay numbers.

    A text that begins like a formula gets an apostrophe in front, which spreadsheets read as "this
    is text".
    """
    if not isinstance(value, str):
        return value
    text = printable(value).replace("\r\n", "\n").replace("\r", "\n")  # one that is quoted
    is_formula = _FORMULA.search(text) and not _NUMBER.fullmatch(text.strip())
    return f"'{text}" if is_formula else text


def markdown_text(text: str) -> str:
    """Text as Markdown shows it, on one line: without tags, links, pictures and new columns."""
    literal = _one_line(text).translate(_MARKDOWN).replace("](", r"]\(")
    return _TAG.sub(r"\\<", literal)


def latex_text(text: str) -> str:
    """Text as LaTeX prints it, whatever characters it holds."""
    return _one_line(text).translate(_LATEX)


def _one_line(text: str) -> str:
    """Printable text whose white space is single spaces, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in printable(text)).split())


DASH = "-"

_NARROWEST = 6

Row = Sequence[str]


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage without its sign; a dash for `None`."""
    return DASH if share is None else f"{100 * share:.{digits}f}"


def points(share: float | None) -> str:
    """A difference of shares in percentage points, with its sign (and a true minus)."""
    return DASH if share is None else f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def milliseconds(value: float | None) -> str:
    """A duration with about three digits."""
    if value is None:
        return DASH
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio: float | None) -> str:
    """A speed-up."""
    return DASH if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def estimate_percent(estimate: Estimate | None) -> str:
    """An accuracy or another mean without its interval; a dash for `None`."""
    return percent(None if estimate is None else estimate.value)


def interval(estimate: Estimate | None, unknown: str = "") -> str:
    """Both ends of an estimate's interval in percent."""
    if estimate is None:
        return unknown
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def difference(versus: Comparison | None) -> str:
    """A paired difference in points; a dash if there is none."""
    return DASH if versus is None or versus.paired is None else points(versus.paired.difference)


def difference_interval(versus: Comparison | None) -> str:
    """Both ends of the interval of a difference in points, or why there is none, or ""."""
    if versus is None or versus.paired is None:
        return ""
    if versus.paired.too_few_clips:
        return "too few clips"
    return f"{points(versus.paired.low)} to {points(versus.paired.high)}"


def difference_with_interval(versus: Comparison | None) -> str:
    """A paired difference in points with its interval; a dash if there is none."""
    ends = difference_interval(versus)
    return f"{difference(versus)} ({ends})" if ends else DASH


def p_value(versus: Comparison | None) -> str:
    """The p value of a difference as papers print it; a dash if there is none."""
    if versus is None or versus.paired is None:
        return DASH
    value = versus.paired.p_value
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def corrected_p(value: float | None) -> str:
    """A p value that was corrected for several comparisons; a dash for `None`."""
    return DASH if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def detectable(versus: Comparison | None) -> str:
    """The smallest true difference that is found in four of five such comparisons, in points."""
    paired = versus.paired if versus else None
    return percent(paired.detectable_difference if paired else None)


def markdown_notes(notes: Iterable[str]) -> list[str]:
    """Sentences to print under a Markdown table."""
    return [markdown_text(note) for note in notes]


def latex_notes(notes: Iterable[str]) -> list[str]:
    """Sentences as comments of LaTeX, each on one line."""
    return [f"% {' '.join(note.split())}" for note in notes]


def markdown_table(header: Row, rows: Sequence[Row], text_columns: int = 1) -> str:
    """A GitHub-flavoured Markdown table.

    Args:
        header: Names of the columns.
        rows: As long as the header each.
        text_columns: How many columns are text; the others are numbers, aligned to the right.
    """
    marks = ["---"] * text_columns + ["---:"] * (len(header) - text_columns)
    return "\n".join(
        "| " + " | ".join(row) + " |"
        for row in (map(markdown_text, header), marks, *(map(markdown_text, row) for row in rows))
    )


def csv_text(header: Row, rows: Iterable[Sequence[object]]) -> str:
    """A CSV file; `None` becomes an empty field, and no field is a formula."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([csv_field(value) for value in row] for row in (header, *rows))
    return stream.getvalue()


def latex_row(row: Row) -> str:
    """One row of a LaTeX `tabular`, escaped."""
    return " & ".join(map(latex_text, row)) + r" \\"


def aligned_rows(header: Row, rows: Sequence[Row], max_width: int | None = None) -> list[str]:
    """A table of plain text: the first column to the left, the others to the right.

    Args:
        header: Names of the columns.
        rows: As long as the header each.
        max_width: Characters per row; the first column is shortened to fit. `None` for no limit.

    Returns:
        The header, a rule, and one text per row.
    """
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    if max_width is not None:
        widths[0] -= max(0, sum(widths) + 2 * (len(widths) - 1) - max_width)
    rule = ["─" * width for width in widths]
    texts = []
    for row in (header, rule, *rows):
        name = shortened(row[0], widths[0])
        numbers = [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        texts.append("  ".join([name.ljust(widths[0]), *numbers]))
    return texts


def text_table(
    header: Row,
    rows: Sequence[Row],
    *,
    right: Collection[str] = (),
    max_width: int | None = None,
    shrink: Collection[str] = (),
) -> list[str]:
    """A table of plain text without rules, two spaces between its columns.

    Args:
        header: Names of the columns.
        rows: As long as the header each.
        right: Columns that are aligned to the right.
        max_width: Characters per row; `None` for no limit.
        shrink: Columns that are shortened to fit, the widest first; none below six characters.

    Returns:
        The header, and one text per row.
    """
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    while max_width is not None and sum(widths) + 2 * (len(widths) - 1) > max_width:
        at = max((at for at, name in enumerate(header) if name in shrink), key=widths.__getitem__)
        if widths[at] <= _NARROWEST:
            break
        widths[at] -= 1
    return [
        "  ".join(
            shortened(text, width).rjust(width)
            if name in right
            else shortened(text, width).ljust(width)
            for name, text, width in zip(header, row, widths, strict=True)
        ).rstrip()
        for row in (header, *rows)
    ]


def shortened(text: str, width: int) -> str:
    """A text cut in its middle: names of runs and cells differ at their ends."""
    if len(text) <= width:
        return text
    end = max(0, (width - 1) // 2)
    return f"{text[: max(0, width - 1 - end)]}…{text[len(text) - end :]}"
