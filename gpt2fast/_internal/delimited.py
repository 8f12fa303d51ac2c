"""Rows of CSV and TSV."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["delimited_line"]


def delimited_line(fields: Iterable[str], delimiter: str) -> str:
    r"""The fields as a row of CSV, or with a tab of TSV, and a newline: quoted as RFC 4180 has it where they need it.

    `csv.writer` leaves a lone carriage return without quotation marks in Python before 3.13.

    >>> delimited_line(["a", "b,c", "d\n"], ";")
    'a;b,c;"d\n"\n'
    """
    special = (delimiter, '"', "\n", "\r")
    quoted = (
        '"' + field.replace('"', '""') + '"' if any(one in field for one in special) else field for field in fields
    )
    return delimiter.join(quoted) + "\n"
