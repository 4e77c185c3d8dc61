"""What ``flwr run`` sends to every node is the code and nothing else that lies in the checkout."""

import ast
import io
import re
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_files

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("client_app", "data_prep", "fcfl_strategy", "privacy", "secagg", "server_app")


def test_the_bundle_holds_the_rooms_of_the_apps_and_nothing_private() -> None:
    paths = [ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "LICENSE", ROOT / ".gitignore"]
    paths += [path for room in (*ROOMS, "experiments", "tests") for path in (ROOT / room).rglob("*.py")]
    files: dict[str, bytes | Path] = {path.relative_to(ROOT).as_posix(): path for path in paths}
    code = {name for name in files if name.startswith(ROOMS)}
    left_lying = (
        "bank/ledger.jsonl",
        "bank/identity.key",
        "bank/silo.toml",
        "samples/silo-00/manifest.json",
        "bank/notes.md",
        "x/key.py",
    )
    files |= dict.fromkeys(left_lying, b"")
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_files(files)[0]))
    assert set(bundle.namelist()) == code | {"pyproject.toml", "README.md", "LICENSE", ".info/CONTENT"}


def test_a_silo_s_own_node_neither_asks_for_that_code_nor_can_install_any() -> None:
    """The SuperLink offers it to every node; ours imports nothing of what fetches, verifies or loads it."""
    for path in (ROOT / "client_app").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not {name for name in names if re.search(r"fab|load_(client_)?app|^(exec|eval)$", name, re.IGNORECASE)}
