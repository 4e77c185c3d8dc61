"""The coordinator's side of Flower's Control API: register the silos' nodes, see which are online.

The Control API has no authentication; it is for whoever runs the coordinator, from inside its own network only.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.common.constant import Status
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from fcfl_strategy.errors import RunError

ONLINE, GONE = "online", "unregistered"


@dataclass(frozen=True)
class Coordinator:
    """Where the SuperLink is.

    Attributes
    ----------
    superlink : str
        ``host:port``.
    root_certificates : Path
        PEM file with the authority that signed its certificate.
    """

    superlink: str
    root_certificates: Path


@contextmanager
def control(coordinator: Coordinator) -> Iterator[ControlHttpClient]:
    """Open a connection.

    Raises
    ------
    RunError
        If the certificate's file cannot be read, or the SuperLink does not answer or refuses.
    """
    try:
        certificates = coordinator.root_certificates.read_bytes()
    except OSError as error:
        raise RunError(f"{coordinator.root_certificates}: cannot be read ({error.strerror})") from None
    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr")]
    try:
        with ControlHttpClient.from_server_address(coordinator.superlink, False, certificates, interceptors) as client:
            yield client
    except httpx.HTTPStatusError as error:
        raise RunError(f"{coordinator.superlink}: the SuperLink answered {error.response.status_code}") from None
    except httpx.HTTPError as error:
        raise RunError(f"{coordinator.superlink}: no connection to the SuperLink ({error})") from None


def nodes(client: ControlHttpClient) -> Mapping[bytes, str]:
    """Return the status of every registered node by its public key (PEM)."""
    found = client.ListNodes(ListNodesRequest()).nodes_info
    return {bytes(node.public_key): node.status for node in found if node.status != GONE}


def under_way(client: ControlHttpClient, run: Path) -> bool:
    """Whether a ServerApp works in a run folder, or is about to, as far as the SuperLink knows.

    A ServerApp that was killed counts until its heartbeat is missed, about three quarters of a minute.
    """
    found = client.ListRuns(ListRunsRequest()).run_dict.values()
    ours = (one for one in found if one.override_config["run-dir"].string == str(run))
    return any(one.status.status != Status.FINISHED for one in ours)


def register(client: ControlHttpClient, keys: Iterable[Path]) -> int:
    """Register the nodes of public keys that are not registered yet; return how many were new.

    Raises
    ------
    RunError
        If a file holds no ECDSA P-384 public key in OpenSSH form.
    """
    known, new = nodes(client), 0
    for path in keys:
        key = node_key(path)
        if key not in known:
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=path.stem))
            new += 1
    return new


def node_key(path: Path) -> bytes:
    """Read a node's public key as PEM, the form in which Flower compares keys.

    Raises
    ------
    RunError
        If it cannot be read or is another kind of key.
    """
    try:
        key = load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise RunError(f"{path}: no public key in OpenSSH form") from None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)):
        raise RunError(f"{path}: not an ECDSA P-384 key, which Flower's SuperLink wants")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
