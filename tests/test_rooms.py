"""The rooms of the code import only the way the architecture allows."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "data_prep": set(),
    "privacy": set(),
    "secagg": set(),
    "fcfl_strategy": {"privacy", "secagg"},
    "client_app": {"privacy", "secagg", "data_prep"},
    "server_app": {"fcfl_strategy", "privacy", "secagg"},
    "experiments": {"data_prep", "privacy", "secagg", "fcfl_strategy", "client_app", "server_app"},
}
FORBIDDEN_LIBRARIES = {
    "privacy": {"flwr"},
    "secagg": {"flwr", "torch"},
    "data_prep": {"flwr", "torch"},
}


def imported_packages(room: str) -> dict[str, set[str]]:
    """Top-level package -> files of the room that import it, imports inside functions included."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import; name the room"
                names = [node.module or ""]
            for name in names:
                found.setdefault(name.split(".")[0], set()).add(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_room_imports_only_what_the_architecture_allows(room: str) -> None:
    ours = set(MAY_IMPORT) - {room}
    broken = {
        package: files
        for package, files in imported_packages(room).items()
        if package in ours - MAY_IMPORT[room] or package in FORBIDDEN_LIBRARIES.get(room, set())
    }
    assert not broken


def test_every_room_is_looked_at() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == set(MAY_IMPORT)
