"""``fcfl roster``: the file that says which identity key is whose."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from client_app.errors import SiloError
from client_app.home import SiloHome
from client_app.pinned_roster import load
from privacy.signing import read_public_key
from secagg.errors import RosterFileError
from secagg.identity import fingerprint
from secagg.pins import HEADER, MAX_COMMENT, Pin, PinnedRoster, identity_of

roster_cli = typer.Typer(
    no_args_is_help=True, help="Rosters: which silos a federation has, and their identity keys, agreed out of band."
)
console = Console()

File = Annotated[Path, typer.Argument(help="The roster.toml.")]


@roster_cli.command("create")
def create(file: File) -> None:
    """Make an empty roster; nothing is ever replaced."""
    if file.exists() or file.is_symlink():
        raise RosterFileError(f"{file}: exists already; add to it with 'fcfl roster add', or choose another name")
    _write(file, HEADER)
    console.print(f"{file} written; add silos with 'fcfl roster add'", highlight=False, soft_wrap=True)


@roster_cli.command("add")
def add(
    file: File,
    name: Annotated[str, typer.Option(help="Name of the silo.")],
    key: Annotated[str, typer.Option(help="Its identity.pub, or the 64 hexadecimal digits of its identity key.")],
    comment: Annotated[str, typer.Option(help="For people, such as the institution.")] = "",
) -> None:
    """Add a silo at the end; what is in the file stays as it is, comments included."""
    load(file)
    pin = Pin(name, _identity(key), comment)
    if len(comment) > MAX_COMMENT or not (comment.isprintable() or not comment):
        raise RosterFileError(f"--comment: expected at most {MAX_COMMENT} printable characters")
    text = file.read_text(encoding="utf-8").rstrip("\n") + "\n" + pin.render()
    # Whatever is wrong with the name or a duplicate is found by reading what would be written.
    PinnedRoster.parse(text, str(file))
    _write(file, text)
    console.print(f"{name} {fingerprint(pin.identity)}: compare this with {name} by telephone", highlight=False)


@roster_cli.command("check")
def check(
    file: File,
    silo: Annotated[Path | None, typer.Option(help="Folder of a silo that must be in the roster.")] = None,
) -> None:
    """Show who is pinned, by fingerprint, and check that the file is well-formed and the silo is in it."""
    roster = load(file)
    if not roster.pins:
        raise RosterFileError(f"{file}: no silo in it; add them with 'fcfl roster add'")
    table = Table("silo", "identity", "comment", title=str(file))
    for pin in roster.pins:
        table.add_row(pin.name, fingerprint(pin.identity), pin.comment)
    Console(width=max(console.width, 140)).print(table, markup=False)
    if silo is None:
        return
    home = SiloHome.open(silo)
    name = home.settings.name
    if roster.identity(name) is None:
        raise SiloError(f"{file}: {name}, the silo of {silo}, is not in it; add it with 'fcfl roster add'")
    if roster.identity(name) != home.identity.public_key:
        raise SiloError(
            f"{file}: lists {name} with another identity than {home.identity.fingerprint}, the one of {silo}"
        )
    console.print(f"{name} is in it with its own identity", highlight=False)
    if home.settings.roster != file.resolve():
        used = home.settings.roster or "no roster"
        console.print(f"note: silo.toml of {silo} names {used}, not this file", highlight=False, soft_wrap=True)


def _identity(key: str) -> bytes:
    path = Path(key)
    if len(key) == 64 and not path.exists():
        return identity_of(key, "--key")
    return read_public_key(path)


def _write(file: Path, text: str) -> None:
    """Replace a file atomically and durably; a roster is no secret."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        with fresh.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
    folder = os.open(file.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
