r"""Names, groups, options and errors are the users': how each file format takes them literally.

Every writer of a table or a page goes through one of these, or through a template that escapes
(`templates/`). The files of harnesses (`jobs/harness`) are the exception: there a reply must stay
as it was, byte for byte.
"""

from __future__ import annotations

import re

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
