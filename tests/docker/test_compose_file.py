"""What docker-compose.yml, the Dockerfile and the proxy's configuration promise, read from the files."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.supernode.fleet_http_client import FleetHttpClient

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SILOS = {name: service for name, service in SERVICES.items() if name.startswith("silo-")}
# Runs before anything else, changes the owner of one folder, sees no network and no volume.
AS_ROOT = {"folders"}


def volumes(service: dict[str, Any]) -> dict[str, str]:
    """Mounted volumes or folders by where they are mounted."""
    return {mount.split(":")[1]: mount.split(":")[0] for mount in service.get("volumes", [])}


def test_twenty_silos_start_by_default() -> None:
    assert sorted(SILOS) == [f"silo-{number:02d}" for number in range(20)]
    assert not any("profiles" in service for service in SERVICES.values())


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_read_only_without_capabilities_and_reaps_its_children(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert service.get("cap_add", []) == (["CHOWN"] if name in AS_ROOT else [])
    assert ("user" in service) == (name in AS_ROOT)
    assert (
        not {"privileged", "network_mode", "pid", "ipc", "devices"} & service.keys()
        or service["network_mode"] == "none"
    )


def test_silos_share_a_network_with_the_proxy_and_nothing_else() -> None:
    assert all(network["internal"] is True for network in COMPOSE["networks"].values())
    assert {name for name, service in SERVICES.items() if "silos" in service.get("networks", [])} == {*SILOS, "proxy"}
    assert all(service["networks"] == ["silos"] for service in SILOS.values())
    inside = {name for name, service in SERVICES.items() if "inside" in service.get("networks", [])}
    assert inside == {"superlink", "executor", "proxy", "conductor"}
    assert not any("ports" in service for service in SERVICES.values())


@pytest.mark.parametrize("name", SILOS)
def test_a_silo_sees_its_own_data_and_its_own_mail_only(name: str) -> None:
    assert volumes(SERVICES[name]) == {"/silo": name, "/mail": f"mail-{name[5:]}"}


def test_no_service_of_the_coordinator_sees_a_silo() -> None:
    for name in ("superlink", "executor", "proxy", "conductor", "operator"):
        assert not set(volumes(SERVICES[name]).values()) & set(SILOS), name


def test_the_authoritys_key_is_the_operators_alone() -> None:
    assert [name for name, service in SERVICES.items() if "federation" in volumes(service).values()] == ["operator"]


def test_the_proxy_lets_through_what_a_node_calls_but_its_own_registration() -> None:
    text = (ROOT / "docker" / "nginx.conf").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"location ~ (\S+) \{", text)
    source = inspect.getsource(FleetHttpClient)
    paths = set(re.findall(r'path="(/v1/fleet/[a-z-]+)"', source))
    let_through = {path for path in paths if re.search(pattern, path)}
    assert paths - let_through == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    for path in ("/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/v1/fleet/get-runs", "/v1/fleet/"):
        assert not re.search(pattern, path)
    # Nothing else is passed on.
    assert text.count("proxy_pass ") == 1


def test_images_run_as_a_user_and_take_no_secret_in() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    finals = [stage for stage in stages if " AS build" not in stage.splitlines()[0]]
    assert len(finals) == 2
    for stage in finals:
        assert re.findall(r"^USER (\S+)", stage, flags=re.MULTILINE)[-1] not in ("root", "0")
    assert not re.search(r"(?i)(password|token|secret|api_?key)\s*=", text)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"
    taken = {line[1:] for line in ignored if line.startswith("!")}
    copied = set(re.findall(r"^COPY (?!--from)([^\n]+) \S+$", text, flags=re.MULTILINE))
    assert {item.split("/")[0] for line in copied for item in line.split()} <= taken


def test_everything_comes_from_one_base_image() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)) == {"${BASE_IMAGE}"}
    built = {service["image"] for service in SERVICES.values()}
    assert built == {"fcfl:${FCFL_TAG:-local}", "fcfl-proxy:${FCFL_TAG:-local}"}
