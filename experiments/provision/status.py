"""What a project holds, at a glance."""

from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from rich.table import Table
from rich.text import Text

from experiments.provision import certificates
from experiments.provision.moments import moment
from experiments.provision.project import RENEW_BEFORE, Project
from experiments.provision.state import Member, Status
from secagg.identity import fingerprint

# Another authority takes a kit to every institution, and a telephone call each.
CA_BEFORE = timedelta(days=365)


def overview(project: Project, now: datetime) -> tuple[Table, list[str]]:
    """Return a table of authority, servers and silos, and what needs doing.

    Raises
    ------
    ProvisionError
        If a file of the project cannot be used.
    """
    declared, known, issuer = project.declared(), project.state(), project.ca()
    table = Table(title=Text(declared.name))
    for heading in ("what", "name", "state", "fingerprint", "days left"):
        table.add_column(heading, no_wrap=True)
    table.add_column("note")
    warnings = _open_to_others(project.root)
    table.add_row("authority", Text(declared.name), "", certificates.fingerprint(issuer), _days(issuer, now))
    if issuer.not_valid_after_utc - now < CA_BEFORE:
        warnings.append(
            'the authority ends within a year; plan another one (docs/provisioning.md, "Another authority")'
        )
    for server in declared.servers:
        held = project.certificate(server)
        shown = ("", "", "") if held is None else (certificates.fingerprint(held), _days(held, now), _names(held))
        table.add_row("server", server.endpoint, "" if held else "no certificate", *shown)
        if reason := project.why_renew(server, now):
            warnings.append(f"{server.host}: {reason}; run 'fcfl provision renew'")
        elif held and held.not_valid_after_utc - now < RENEW_BEFORE:
            warnings.append(f"{server.host}: ends soon; run 'fcfl provision renew'")
    members = {member.name: member for member in known.members}
    for name in sorted({silo.name for silo in declared.silos} | set(members)):
        institution, member = declared.silo(name), members.get(name)
        note = institution.organisation if institution else ""
        table.add_row("silo", name, *_silo(member, now), Text(note))
        if warning := _silo_warning(name, member, now):
            warnings.append(warning)
        if institution is None:
            warnings.append(
                f"{name}: not in federation.toml, where it was removed by hand; 'fcfl provision revoke' revokes"
            )
    return table, warnings


def _silo(member: Member | None, now: datetime) -> tuple[str, str, str]:
    if member is None:
        return "declared", "", ""
    days = str((moment(member.code_until, member.name) - now).days) if member.status is Status.EXPECTED else ""
    shown = fingerprint(bytes.fromhex(member.identity)) if member.identity else ""
    return f"{member.status.value} {member.since[:10]}", shown, f"code: {days}" if days else ""


def _silo_warning(name: str, member: Member | None, now: datetime) -> str:
    if member is None:
        return f"{name}: declared without a code; 'fcfl provision add-silo {name}' gives it one"
    if member.status is Status.EXPECTED and now > moment(member.code_until, name):
        return f"{name}: its code has ended; 'fcfl provision add-silo {name}' gives another"
    if member.status is Status.ENROLLED and not member.node_id:
        return f"{name}: node id not noted ('fcfl provision note-node'); without it its node cannot be unregistered"
    return ""


def _open_to_others(root: Path) -> list[str]:
    """Return a warning for each file or folder of the project that others than its owner may use."""
    return [
        f"{path}: others than its owner may read or write it; run: chmod go= '{path}'"
        for path in sorted(root.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


def _days(certificate: x509.Certificate, now: datetime) -> str:
    return str((certificate.not_valid_after_utc - now).days)


def _names(certificate: x509.Certificate) -> Text:
    return Text(", ".join(certificates.names_of(certificate)))
