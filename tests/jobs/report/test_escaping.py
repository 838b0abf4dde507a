"""Hostile names are taken literally by every format, and numbers stay numbers."""

import csv
import io

import pytest

from jobs.report.formatting import Table, csv_field, latex_text, markdown_text

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\uff1d1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_field_is_a_formula(text):
    text_of_field = f"'{text}".replace("\r", "\n")
    assert csv_field(text) == text_of_field
    read = next(csv.reader(io.StringIO(Table([text], []).csv(), newline="")))
    assert read == [text_of_field]


NUMBERS = ["-3.2", "+5", "-1e-5", "-", "\N{MINUS SIGN}3.2", "-3.2 %", "-inf", -3.2, None, 7]


@pytest.mark.parametrize("value", [*NUMBERS, "", "tango r=0.1"])
def test_numbers_and_plain_names_stay(value):
    assert csv_field(value) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),
        ("<script>x</script>", r"\<script>x\</script>"),
        ("<!-- x", r"\<!-- x"),
        ("<0.001", "<0.001"),
        ("a\nb\r\nc", "a b c"),
        ("![x](http://tracker)", r"![x]\(http://tracker)"),
        ("vid\udce9o", r"vid\\xe9o"),
        ("a\x1b[31mb", "a [31mb"),
    ],
)
def test_markdown_shows_the_text(text, expected):
    assert markdown_text(text) == expected


def test_latex_prints_the_text():
    assert latex_text("50% & $x_1^2$ {#} \\input{/etc/passwd} <a> ~ [b]\n%") == (
        r"50\% \& \$x\_1\textasciicircum{}2\$ \{\#\} \textbackslash{}input\{/etc/passwd\} "
        r"$<$a$>$ \textasciitilde{} {[}b{]} \%"
    )
