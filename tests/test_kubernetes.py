"""The Kubernetes example is well-formed and as locked down as the containers of docker-compose.yml."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples" / "kubernetes"
FILES = {
    "coordinator.yaml": ["ConfigMap", "Service", "NetworkPolicy", "StatefulSet"],
    "silo.yaml": ["NetworkPolicy", "StatefulSet"],
}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def of_kind(name: str, kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents(name) if document["kind"] == kind)
    return found


def pod(name: str) -> dict[str, Any]:
    return dict(of_kind(name, "StatefulSet")["spec"]["template"]["spec"])


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8")))


def test_every_example_is_looked_at() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_the_objects_are_those_expected_in_a_namespace_of_their_own(name: str) -> None:
    found = documents(name)
    assert [document["kind"] for document in found] == FILES[name]
    assert len({document["metadata"]["namespace"] for document in found}) == 1
    assert all(document["apiVersion"] and document["metadata"]["name"] for document in found)


@pytest.mark.parametrize("name", FILES)
def test_every_container_is_as_locked_down_as_in_compose(name: str) -> None:
    common = compose()["x-common"]
    assert common["read_only"] is True
    assert common["cap_drop"] == ["ALL"]
    assert common["security_opt"] == ["no-new-privileges:true"]
    user = re.search(r"useradd --uid (\d+)", (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"))
    assert user is not None
    spec = pod(name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == int(user[1])
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not container["image"].endswith(":latest")
        assert not {"env", "envFrom"} & container.keys()


@pytest.mark.parametrize("name", FILES)
def test_every_mount_has_a_volume_and_a_writable_tmp_is_each_container_s_own(name: str) -> None:
    spec = pod(name)
    claims = of_kind(name, "StatefulSet")["spec"]["volumeClaimTemplates"]
    volumes = {volume["name"] for volume in spec["volumes"]} | {claim["metadata"]["name"] for claim in claims}
    mounts = [mount for container in spec["containers"] for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == volumes
    scratch = [mount["name"] for mount in mounts if mount["mountPath"] == "/tmp"]
    assert len(scratch) == len(set(scratch)) == len(spec["containers"])
    # A volume that two pods write is two ledgers of one budget.
    assert {mode for claim in claims for mode in claim["spec"]["accessModes"]} == {"ReadWriteOncePod"}
    assert of_kind(name, "StatefulSet")["spec"]["replicas"] == 1


@pytest.mark.parametrize("name", FILES)
def test_selectors_meet_their_pods(name: str) -> None:
    labels = of_kind(name, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert of_kind(name, "StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind(name, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert set(of_kind(name, "NetworkPolicy")["spec"]["policyTypes"]) == {"Ingress", "Egress"}


def test_only_the_proxy_of_the_coordinator_is_reached() -> None:
    containers = {container["name"]: container for container in pod("coordinator.yaml")["containers"]}
    assert set(containers) == {"superlink", "executor", "proxy"}
    assert "--host=127.0.0.1" in containers["superlink"]["command"]
    assert "--enable-supernode-auth" in containers["superlink"]["command"]
    assert [name for name, container in containers.items() if "ports" in container] == ["proxy"]
    (port,) = of_kind("coordinator.yaml", "Service")["spec"]["ports"]
    assert port["targetPort"] == containers["proxy"]["ports"][0]["name"]
    assert of_kind("coordinator.yaml", "NetworkPolicy")["spec"]["egress"] == []


def test_nobody_calls_a_silo() -> None:
    assert of_kind("silo.yaml", "NetworkPolicy")["spec"]["ingress"] == []
    assert "ports" not in pod("silo.yaml")["containers"][0]


def test_the_proxy_is_that_of_compose_but_for_the_way_to_the_superlink() -> None:
    """Same paths, same limits: every directive but the upstream and its resolver."""

    def directives(text: str) -> set[str]:
        lines = (line.split("#")[0].strip() for line in text.splitlines())
        return {line for line in lines if line and not re.match(r"(resolver|set \$superlink|proxy_pass) ", line)}

    ours = of_kind("coordinator.yaml", "ConfigMap")["data"]["nginx.conf"]
    theirs = (ROOT / "docker" / "nginx.conf").read_text(encoding="utf-8")
    assert directives(ours) == directives(theirs)
    assert re.findall(r"proxy_pass (\S+);", ours) == ["https://127.0.0.1:8000"]


def test_the_proxy_passes_on_no_path_but_a_node_s() -> None:
    """Every path that Flower's SuperLink knows, against the proxy's own pattern."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    text = of_kind("coordinator.yaml", "ConfigMap")["data"]["nginx.conf"]
    (pattern,) = re.findall(r"location ~ (\S+) \{", text)
    let_in = {path for _, path in PROTOBUF_REQUEST_TYPES if re.search(pattern, path)}
    fleet = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    assert let_in == fleet - {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert len(let_in) == pattern.count("|") + 1
    for path in ("/docs", "/openapi.json", "/v1/fleet/pull-messages/", "/v1/control/start-run?/v1/fleet/pull-messages"):
        assert not re.search(pattern, path)
