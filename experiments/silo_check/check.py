"""All checks of a silo, in the order in which a person would go through them."""

from pathlib import Path

from client_app.node.errors import NodeError
from client_app.node.settings import load_connection
from experiments.silo_check.dry_sum import check_sum
from experiments.silo_check.findings import Finding, Level, failed, guarded, ok
from experiments.silo_check.folder import check_folder, check_keys
from experiments.silo_check.network import check_network
from privacy.errors import PrivacyError
from privacy.signing import SigningKey
from secagg.errors import SecAggError


def check_silo(home: Path, *, offline: bool = False) -> list[Finding]:
    """Check a silo's folder, and its way to the coordinator unless ``offline``.

    Nothing in the folder is changed, but for a file that is written and removed. Online, the node's key is activated
    for a moment if no node of the folder runs.
    """
    found = check_folder(home)
    found.append(
        guarded("secure sum", lambda: check_sum(SigningKey.load(home / "identity.key")), PrivacyError, SecAggError)
    )
    try:
        connection = load_connection(home)
    except NodeError as error:
        return [*found, failed("connection", str(error))]
    found.append(ok("connection", f"{connection.superlink}, from connection.toml"))
    keys = check_keys(connection)
    found += keys
    if not offline and all(key.level is not Level.FAILED for key in keys):
        found += check_network(home, connection)
    return found
