"""Reads a study's TOML key by key; every complaint names file and key, and says what was expected."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from experiments.arena.errors import StudyError
from experiments.arena.methods import Candidates, Range
from server_app.config import KEYS
from server_app.methods import Value


class Section:
    """One table of the file.

    Parameters
    ----------
    file : str
    where : str
        Dotted name of the table; empty for the file itself.
    content : mapping
    """

    def __init__(self, file: str, where: str, content: Mapping[str, Any]) -> None:
        self.file, self.where, self._content = file, where, content
        self._read: set[str] = set()

    def error(self, key: str, what: str) -> StudyError:
        """Return a complaint about a key of this table."""
        dotted = f"{self.where}.{key}" if self.where else key
        return StudyError(f"{self.file}: {dotted}: {what}")

    def names(self) -> list[str]:
        """Names in this table."""
        return list(self._content)

    def finish(self) -> None:
        """Refuse keys that nobody asked for."""
        for key in self._content:
            if key not in self._read:
                raise self.error(key, f"unknown key; expected {', '.join(sorted(self._read))}")

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        return self._content.get(key, default)

    def section(self, key: str) -> "Section":
        """Return a table in this one; empty if it is not there."""
        found = self._get(key, {})
        if not isinstance(found, dict):
            raise self.error(key, f"expected a table, got {found!r}")
        return Section(self.file, f"{self.where}.{key}" if self.where else key, found)

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        found = self._get(key, default)
        if not isinstance(found, str) or not found:
            raise self.error(key, f"expected text, got {found!r}")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty by default."""
        found = self._get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
            raise self.error(key, f"expected a list of texts, got {found!r}")
        return tuple(found)

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return one of some texts, by default the first."""
        found = self._get(key, choices[0])
        if found not in choices:
            raise self.error(key, f"expected one of {', '.join(choices)}, got {found!r}")
        return str(found)

    def flag(self, key: str) -> bool:
        """Return a switch, off by default."""
        found = self._get(key, False)
        if not isinstance(found, bool):
            raise self.error(key, f"expected true or false, got {found!r}")
        return found

    def whole(self, key: str, default: int, *, low: int) -> int:
        """Return a whole number."""
        found = self._get(key, default)
        if type(found) is not int or not low <= found < 2**31:
            raise self.error(key, f"expected a whole number of at least {low}, got {found!r}")
        return found

    def whole_numbers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return different whole numbers."""
        found = self._get(key, list(default))
        fine = isinstance(found, list) and all(type(item) is int and 0 <= item < 2**31 for item in found)
        if not fine or not found or len(set(found)) < len(found):
            raise self.error(key, f"expected a list of different whole numbers of at least 0, got {found!r}")
        return tuple(found)

    def number(self, key: str, default: float, *, above: float = -math.inf, high: float = math.inf) -> float:
        """Return a number above ``above`` and at most ``high``."""
        return self._number(key, self._get(key, default), above=above, high=high)

    def numbers(
        self,
        key: str,
        default: tuple[float, ...],
        *,
        above: float = -math.inf,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> tuple[float, ...]:
        """Return different numbers."""
        found = self._get(key, list(default))
        if not isinstance(found, list) or not found or len(set(map(str, found))) < len(found):
            raise self.error(key, f"expected a list of different numbers, got {found!r}")
        return tuple(self._number(key, item, above=above, low=low, high=high) for item in found)

    def _number(
        self, key: str, found: Any, *, above: float = -math.inf, low: float = -math.inf, high: float = math.inf
    ) -> float:
        fine = type(found) in (int, float) and math.isfinite(found)
        if not (fine and found > above and low <= found <= high):
            least = f" above {above:g}" if above > -math.inf else f" of at least {low:g}" if low > -math.inf else ""
            most = f" and at most {high:g}" if high < math.inf else ""
            raise self.error(key, f"expected a number{least}{most}, got {found!r}")
        return float(found)

    def settings(self, prefix: str, forbidden: Mapping[str, str]) -> dict[str, Value]:
        """Return settings of the run configuration; ``local.step-size`` may be written with or without quotes."""
        found: dict[str, Value] = {}
        for key, value in self._flat(self._content, prefix, lambda value: False).items():
            self._check_key(key, KEYS, forbidden)
            if isinstance(value, list):
                raise self.error(key, f"expected one value, got {value!r}; lists go into tune")
            found[key] = value
        return found

    def candidates(self, keys: Collection[str], forbidden: Mapping[str, str]) -> dict[str, Candidates]:
        """Return lists of values, or ranges ``{ from = 0.1, to = 2.0, scale = "log" }``, by setting."""
        found: dict[str, Candidates] = {}
        for key, value in self._flat(self._content, "", lambda value: "from" in value or "to" in value).items():
            self._check_key(key, keys, forbidden)
            found[key] = self._range(key, value) if isinstance(value, dict) else self._list(key, value)
        return found

    def _check_key(self, key: str, keys: Collection[str], forbidden: Mapping[str, str]) -> None:
        if key in forbidden:
            raise self.error(key, f"expected another setting; {forbidden[key]}")
        if key not in keys:
            raise self.error(key, "unknown setting; 'fcfl settings' lists them")

    def _list(self, key: str, value: Any) -> tuple[Value, ...]:
        if not isinstance(value, list) or len(set(map(repr, value))) < max(len(value), 1):
            raise self.error(key, f"expected a list of different values, or a range, got {value!r}")
        return tuple(value)

    def _range(self, key: str, value: Mapping[str, Any]) -> Range:
        inner = Section(self.file, f"{self.where}.{key}", value)
        logarithmic = inner.choice("scale", ("log", "linear")) == "log"
        low = inner.number("from", math.nan, above=0.0 if logarithmic else -math.inf)
        high = inner.number("to", math.nan, above=low)
        inner.finish()
        return Range(low, high, logarithmic)

    def _flat(self, content: Mapping[str, Any], prefix: str, is_value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in content.items():
            if isinstance(value, dict) and not is_value(value):
                found |= self._flat(value, f"{prefix}{key}.", is_value)
            else:
                found[f"{prefix}{key}"] = value
        return found
