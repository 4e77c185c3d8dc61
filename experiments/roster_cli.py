"""``fcfl roster``: the file that says which identity key is whose."""

import os
import string
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_app.errors import SiloError
from client_app.home import SiloHome
from client_app.pinned_roster import load
from privacy.files import sync_folder
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
    notes = [] if silo is None else _check_silo(roster, silo)
    table = Table("silo", "identity", "comment", title=Text(str(file)))
    for pin in roster.pins:
        table.add_row(pin.name, fingerprint(pin.identity), Text(pin.comment))
    # A fingerprint that is cut or folded cannot be compared.
    Console(width=max(console.width, 150)).print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _check_silo(roster: PinnedRoster, folder: Path) -> list[str]:
    """Refuse a roster that a silo is not in; return what to say otherwise."""
    home = SiloHome.open(folder)
    name, pinned = home.settings.name, roster.identity(home.settings.name)
    if pinned is None:
        raise SiloError(f"{roster.where}: {name}, the silo of {folder}, is not in it; add it with 'fcfl roster add'")
    if pinned != home.identity.public_key:
        raise SiloError(
            f"{roster.where}: lists {name} with another identity than {home.identity.fingerprint}, the one of {folder}"
        )
    notes = [f"{name} is in it with its own identity"]
    if home.settings.roster != Path(roster.where).resolve():
        notes.append(f"note: {folder / 'silo.toml'} names {home.settings.roster or 'no roster'}, not this file")
    return notes


def _identity(key: str) -> bytes:
    digits = not set(key) - set(string.hexdigits)
    return identity_of(key, "--key") if digits and not Path(key).exists() else read_public_key(Path(key))


def _write(file: Path, text: str) -> None:
    """Replace a file atomically and durably; a roster is no secret."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        with fresh.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
        sync_folder(file.resolve().parent)
    except OSError as error:
        raise RosterFileError(
            f"{file}: cannot be written ({error.strerror}); check the folder, its rights and the disk"
        ) from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
