"""``fcfl provision``: the operator's project, and an institution's way into the federation and back."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.provision import certificates, moments
from experiments.provision import kit as kits
from experiments.provision.code import code_key, new_code
from experiments.provision.console import console, say
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import DAYS, Federation, Institution, Server
from experiments.provision.institution_cli import csr, install
from experiments.provision.keys import read_public, read_secret
from experiments.provision.names import federation_name, organisation, silo_name
from experiments.provision.project import Project
from experiments.provision.request import MAX_BYTES, Request
from experiments.provision.status import overview
from privacy.files import replace as write
from secagg.identity import fingerprint

provision_cli = typer.Typer(
    no_args_is_help=True,
    help="Certificates, and the way of institutions into a federation. They use csr and install, operators the rest.",
)
provision_cli.command("csr")(csr)
provision_cli.command("install")(install)


Root = Annotated[Path, typer.Option("--project", "-p", help="The project's folder.")]
Passphrase = Annotated[
    Path | None, typer.Option(help="File (mode 0600) with the passphrase of the authority's key; else it is asked for.")
]
Silo = Annotated[str, typer.Argument(help="Name of the silo.")]
HERE = Path()


@provision_cli.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make.")],
    name: Annotated[str, typer.Option(help="Name of the federation.")],
    server: Annotated[str, typer.Option(help="Host name (or address) that silos connect to.")],
    port: Annotated[int, typer.Option(help="Port that silos connect to.")] = 443,
    server_name: Annotated[list[str] | None, typer.Option(help="Further host name of the certificate.")] = None,
    ip: Annotated[list[str] | None, typer.Option(help="Address of the certificate.")] = None,
    ca_days: Annotated[int, typer.Option(help="Validity of the authority.")] = DAYS["ca_days"],
    server_days: Annotated[int, typer.Option(help="Validity of server certificates.")] = DAYS["server_days"],
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt the authority's key; asks for a passphrase.")
    ] = False,
    passphrase_file: Passphrase = None,
) -> None:
    """Make a project: declaration, certificate authority, server certificate."""
    host = Server.of(server, port, server_name or [], ip or [], "--server")
    for option, days in (("--ca-days", ca_days), ("--server-days", server_days)):
        if not 0 < days <= 36500:
            raise ProvisionError(f"{option} = {days}; expected whole days from 1 to 36500")
    declared = Federation(federation_name(name, "--name"), (host,), ca_days=ca_days, server_days=server_days)
    secret = b""
    if passphrase_file is not None:
        secret = _passphrase_of(passphrase_file)
    elif encrypt:
        secret = typer.prompt("passphrase of the authority's key", hide_input=True, confirmation_prompt=True).encode()
    project = Project.create(folder, declared, moments.now(), secret)
    say(
        f"{folder}: made. Next: 'fcfl provision add-silo' for every institution",
        f"authority {certificates.fingerprint(project.ca())}: tell every institution by telephone, with its code",
        f"{project.server_folder(host)}: server.key and server.crt for {host.endpoint}",
        f"{project.ca_key} is secret{'' if secret else ' and not encrypted (--encrypt)'}; keep a copy of the folder "
        "offline",
    )


@provision_cli.command("add-silo")
def add_silo(
    silo: Silo,
    institution: Annotated[str, typer.Option("--organisation", help="Whose silo it is.")] = "",
    project: Root = HERE,
) -> None:
    """Register an institution that is expected, and print its one-time enrolment code."""
    opened, now = Project.open(project), moments.now()
    entry = Institution(silo_name(silo, "SILO"), organisation(institution, "--organisation"))
    with opened.alone():
        code = new_code()
        until = now + timedelta(days=opened.declared().code_days)
        fresh = opened.state().expect(silo, code_key(code, silo, "code"), until, now)
        opened.add(entry)
        opened.store(fresh)
    say(
        f"{silo}: expected until {until:%Y-%m-%d}. Tell it by telephone, not over the way its request will come:",
        f"  enrolment code  {code}",
        f"  authority       {certificates.fingerprint(opened.ca())}",
        "The code works once and is not shown again; 'fcfl provision add-silo' gives another.",
    )


@provision_cli.command("sign")
def sign(
    request_file: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request of a silo.")],
    given: Annotated[
        str, typer.Option("--fingerprint", help="Fingerprint the institution told; else compare it.")
    ] = "",
    project: Root = HERE,
) -> None:
    """Check a silo's request and enrol it; the signature that the silo gets is that of its start-up kit."""
    opened, now, where = Project.open(project), moments.now(), str(request_file)
    request = Request.parse(read_public(request_file, MAX_BYTES, "request"), where)
    request.verify(now, where)
    if given and _digits(given) != _digits(request.fingerprint):
        raise ProvisionError(
            f"{where}: its fingerprint is {request.fingerprint}, not the one given; somebody changed the request, or "
            "the institution made a newer one"
        )
    with opened.alone():
        before = opened.state()
        fresh = before.admit(request, now, where)
        # Also for a request that is enrolled already: it may have been cut off before everything was written.
        opened.store(fresh)
    done = "enrolled already" if fresh is before else "node key replaced" if request.replaces else "enrolled"
    say(
        f"{request.silo}: {done}",
        f"request   {request.fingerprint}: compare with {request.silo} by telephone before its kit goes out",
        f"identity  {fingerprint(request.identity)}",
        "Next, on the SuperLink's side, and note the id it prints:",
        f"  flwr supernode register {opened.public_key(request.silo)} SUPERLINK --name {request.silo}",
        f"  fcfl provision note-node {request.silo} NODE-ID --project {opened.root}",
        f"  fcfl provision export {request.silo} --project {opened.root}",
    )


@provision_cli.command("note-node")
def note_node(
    silo: Silo,
    node_id: Annotated[int, typer.Argument(help="Id that 'flwr supernode register' printed.")],
    project: Root = HERE,
) -> None:
    """Note the id the SuperLink gave a silo's node: Flower 1.42 lists nodes without their names or keys."""
    if not 0 < node_id < 1 << 64:
        raise ProvisionError("NODE-ID: expected the whole number that 'flwr supernode register' printed")
    opened = Project.open(project)
    with opened.alone():
        opened.store(opened.state().note_node(silo, node_id))
    say(f"{silo}: node {node_id}")


@provision_cli.command("export")
def export(
    silo: Annotated[str, typer.Argument(help="Name of the silo.")],
    out: Annotated[
        Path | None, typer.Option(help="File of the kit; else kit-SILO.tar in the project's folder.")
    ] = None,
    passphrase_file: Passphrase = None,
    project: Root = HERE,
) -> None:
    """Write the start-up kit of an enrolled silo."""
    opened = Project.open(project)
    with opened.alone():
        known = opened.state()
        known.need(silo)
        key, issuer = opened.authority(_passphrase(opened, passphrase_file))
        data = kits.build(opened.declared(), known, silo, issuer, key)
    path = out or opened.root / f"kit-{silo}.tar"
    write(path, data)
    say(
        f"{path}: send it to {silo}; nothing in it is secret",
        f"authority {certificates.fingerprint(issuer)}: {silo} compares it by telephone and runs",
        f"  fcfl provision install {path.name} --home HOME --fingerprint {certificates.fingerprint(issuer)}",
    )


@provision_cli.command("renew")
def renew(
    host: Annotated[str, typer.Option("--server", help="Only this server.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Also where the certificate is good for long.")] = False,
    passphrase_file: Passphrase = None,
    project: Root = HERE,
) -> None:
    """Give servers another certificate where it ends soon or other names are declared; silos need not do anything."""
    opened, now = Project.open(project), moments.now()
    with opened.alone():
        servers = [server for server in opened.declared().servers if host in ("", server.host)]
        if not servers:
            raise ProvisionError(f"--server = {host}: not in {opened.root / 'federation.toml'}")
        due = {server: opened.why_renew(server, now) or ("asked for" if force else "") for server in servers}
        secret = _passphrase(opened, passphrase_file) if any(due.values()) else b""
        for server, reason in due.items():
            if not reason:
                say(f"{server.host}: good for more than a month; --force renews it all the same")
                continue
            fresh = opened.renew(server, now, secret)
            say(
                f"{server.host}: renewed ({reason}), until {fresh.not_valid_after_utc:%Y-%m-%d}; give the server "
                f"{opened.server_folder(server)}/server.key and server.crt and let it read them again"
            )


@provision_cli.command("revoke")
def revoke(
    silo: Silo,
    stolen: Annotated[
        bool, typer.Option("--stolen", help="Its identity key is in other hands: never take it back.")
    ] = False,
    project: Root = HERE,
) -> None:
    """Take a silo out of the roster; what stops its node is the command this prints."""
    opened = Project.open(project)
    with opened.alone():
        before = opened.state()
        fresh = before.revoke(silo, moments.now(), stolen=stolen)
        opened.store(fresh)
    node = before.member(silo)
    number = (
        str(node.node_id) if node and node.node_id else "NODE-ID (the one 'flwr supernode register' printed for it)"
    )
    say(
        f"{silo}: revoked. Nothing changes in a run that is under way until, on the SuperLink's side:",
        f"  flwr supernode unregister {number} SUPERLINK",
        "Then send every other silo a new kit ('fcfl provision export'). A silo that installs it takes part in no run "
        f"with {silo}, a run under way included: install it between runs, or at once if the key was stolen.",
    )


@provision_cli.command("status")
def status(project: Root = HERE) -> None:
    """Show the authority, servers and silos with fingerprints and what ends when, and what to do."""
    opened = Project.open(project)
    table, warnings = overview(opened, moments.now())
    # A fingerprint that is cut or folded cannot be compared.
    Console(width=max(console.width, 200)).print(table)
    say(*(f"warning: {warning}" for warning in warnings))


def _passphrase(project: Project, file: Path | None) -> bytes:
    if file is not None:
        return _passphrase_of(file)
    return typer.prompt("passphrase of the authority's key", hide_input=True).encode() if project.locked else b""


def _passphrase_of(file: Path) -> bytes:
    secret = read_secret(file, "passphrase").rstrip(b"\r\n")
    if not secret:
        raise ProvisionError(f"{file}: empty; expected the passphrase of the authority's key in its first line")
    return secret


def _digits(text: str) -> str:
    return "".join(text.split()).replace("-", "").upper()
