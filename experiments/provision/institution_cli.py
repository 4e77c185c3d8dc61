"""``fcfl provision csr`` and ``install``: what an institution does in its silo's own folder."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from experiments.provision import enrolment, moments
from experiments.provision import kit as kits
from experiments.provision.code import code_key
from experiments.provision.console import say
from experiments.provision.errors import ProvisionError
from experiments.provision.keys import read_public, read_secret
from experiments.provision.names import silo_name
from privacy.files import replace as write
from secagg.identity import fingerprint


def csr(
    home: Annotated[Path, typer.Argument(help="The silo's own folder.")],
    silo: Annotated[str, typer.Option(help="Name of the silo in the federation.")],
    code_file: Annotated[
        Path | None, typer.Option(help="File (mode 0600) with the code; else it is asked for.")
    ] = None,
    new_node_key: Annotated[
        bool, typer.Option("--new-node-key", help="Replace the SuperNode's key of an enrolled silo.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Copy of the request, for sending.")] = None,
) -> None:
    """At the institution: make the silo's keys, and the request that goes to the operator."""
    silo_name(silo, "--silo")
    key = b""
    if code_file is not None:
        key = code_key(read_secret(code_file, "enrolment code").decode(errors="replace"), silo, str(code_file))
    elif not new_node_key:
        key = code_key(typer.prompt("enrolment code", hide_input=True), silo, "enrolment code")
    request = enrolment.make_request(home, silo, moments.now(), key, new_node_key=new_node_key)
    if out is not None:
        write(out, request.render())
    say(
        f"{out or home / enrolment.REQUEST}: send this file to the operator; nothing in it is secret",
        f"request   {request.fingerprint}: compare with the operator by telephone",
        f"identity  {fingerprint(request.identity)}: compare with the other institutions",
        f"Keep a copy of {home / 'identity.key'} offline; it never leaves {home} otherwise.",
    )


def install(
    kit_file: Annotated[Path, typer.Argument(metavar="KIT", help="The start-up kit.")],
    home: Annotated[Path, typer.Option(help="The silo's own folder.")],
    given: Annotated[str, typer.Option("--fingerprint", help="The authority's, as the operator told it by telephone.")],
    accept_roster: Annotated[
        bool, typer.Option("--accept-roster", help="Replace a roster.toml that lists other silos or keys.")
    ] = False,
) -> None:
    """At the institution: check a start-up kit, and install it beside the silo's policy and ledger."""
    kit = enrolment.open_kit(home, read_public(kit_file, kits.MAX_BYTES, "kit"), given, moments.now(), str(kit_file))
    change = enrolment.roster_change(home, kit)
    if change.lines:
        say("the kit's roster is another than this silo's (- gone, + new, ! other identity):", *change.lines)
        if not accept_roster:
            raise ProvisionError(
                f"{kit_file}: compare the fingerprints of the new silos by telephone, then give --accept-roster; "
                "nothing was changed"
            )
    enrolment.install(home, kit)
    root = home.resolve()
    notes = [f"{home}: kit of {kit.federation} for {kit.silo} installed, revision {kit.revision}"]
    if change.first:
        notes.append(f"Compare the fingerprints of the roster: fcfl roster check {root / 'roster.toml'}")
    if not (home / "silo.toml").exists():
        notes.append(f"Read {home / 'silo.example.toml'}, set your policy, and save it as {home / 'silo.toml'}")
    say(
        *notes,
        "Look whether all is well, and start the node:",
        f"  fcfl silo check {shlex.quote(str(root))}",
        f"  fcfl silo run {shlex.quote(str(root))}",
    )
