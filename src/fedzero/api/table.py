"""Results as a table: columns by name, as arrays, for the eye and for pandas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import FedzeroError


class Table(Mapping[str, NDArray[Any]]):
    """Columns of equal length, by name, each an array."""

    def __init__(self, columns: Mapping[str, Any]):
        self._columns = {name: np.asarray(column) for name, column in columns.items()}

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Table:
        """From rows, which need not have the same names: where one has no value there is None, or NaN among numbers."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        return cls({name: _column([row.get(name) for row in rows]) for name in names})

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"{name!r}: the columns are {', '.join(self._columns)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def to_pandas(self) -> Any:
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise FedzeroError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(self._columns)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each row."""
        count = len(next(iter(self._columns.values()), ()))
        return [{name: column[i] for name, column in self._columns.items()} for i in range(count)]

    def __repr__(self) -> str:
        cells = [list(self._columns), *([_cell(value) for value in row.values()] for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in cells)


def _column(values: list[Any]) -> NDArray[Any]:
    numbers = [isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values]
    if any(numbers) and all(number or value is None for number, value in zip(numbers, values, strict=True)):
        return np.array([np.nan if value is None else value for value in values])
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
