"""compose.yaml and the manifests of Kubernetes: they fit their schemas, each other, the image and the settings."""

import re
from functools import cache
from typing import Any

import pytest
import yaml

from rerank.config import load_config
from rerank.names import LIVENESS
from tests.deploy.test_dockerfile import DEPLOY, LAST, SETTINGS

MANIFESTS = ["deployment.yaml", "network.yaml", "http.yaml", "disruption.yaml", "autoscaling.yaml"]
#: The newest and the oldest version that is checked. The pause before the end of a pod needs 1.30.
VERSIONS = ["1.30", "1.37"]
WHY = "needs the extra images; `make image-tests` installs it"


@cache
def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def pod() -> Any:
    return read("kubernetes/deployment.yaml")["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def ports() -> dict[str, int]:
    """The ports of the settings, by their names in the manifests."""
    settings = load_config(SETTINGS)
    addresses = {"grpc": settings.listen, "http": settings.http.listen, "metrics": settings.telemetry.metrics}
    return {name: int(address.split(":")[1]) for name, address in addresses.items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_fits_the_schema_of_kubernetes(name, version):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=WHY)
    kubernetes_validate.validate(read(f"kubernetes/{name}"), version, strict=True)


def test_compose_file_fits_the_specification():
    compose_spec = pytest.importorskip("compose_spec", reason=WHY)
    text = re.sub(r"\$\{\w+:-(\w*)\}", r"\1", (DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(compose_spec.PyCompose.from_yaml(text).service_names()) == {"rerank", "prometheus"}
    with pytest.raises(ValueError, match="restarts"):
        compose_spec.PyCompose.from_yaml(text.replace("restart:", "restarts:"))


def test_image_compose_and_kubernetes_have_the_ports_of_the_settings():
    expected = ports()
    (exposed,) = LAST.of("EXPOSE")
    assert [int(port) for port in exposed.split()] == list(expected.values())
    assert {port["name"]: port["containerPort"] for port in container()["ports"]} == expected
    services = [read(f"kubernetes/{name}")["spec"]["ports"] for name in ("network.yaml", "http.yaml")]
    assert {port["targetPort"]: port["port"] for service in services for port in service} == expected
    published = [f"127.0.0.1:{expected[name]}:{expected[name]}" for name in ("grpc", "http")]
    assert read("compose.yaml")["services"]["rerank"]["ports"] == published
    (scraped,) = read("prometheus.yml")["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"rerank:{expected['metrics']}"]}]
    assert LAST.command("HEALTHCHECK")[-1] == f"127.0.0.1:{expected['grpc']}"
    annotations = read("kubernetes/deployment.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(expected["metrics"])


def test_probes_ask_for_the_default_model_and_for_liveness():
    probes = {name: container()[f"{name}Probe"]["grpc"] for name in ("startup", "readiness", "liveness")}
    default = {"port": ports()["grpc"]}
    assert probes == {"startup": default, "readiness": default, "liveness": default | {"service": LIVENESS}}


def test_pods_and_containers_end_later_than_the_drain():
    drain_s = load_config(SETTINGS).drain_s
    pause_s = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] > pause_s + drain_s
    assert int(read("compose.yaml")["services"]["rerank"]["stop_grace_period"].removesuffix("s")) > drain_s


def test_containers_are_not_root_and_write_only_where_they_may():
    (user,) = LAST.of("USER")
    security = pod()["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user
    assert security["runAsNonRoot"]
    own = container()["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    writable = {mount["mountPath"] for mount in container()["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {LAST.variables("")["XDG_CACHE_HOME"], "/tmp"}
    assert read("compose.yaml")["services"]["rerank"]["read_only"]


def test_selectors_and_targets_are_those_of_the_deployment():
    deployment = read("kubernetes/deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert read("kubernetes/disruption.yaml")["spec"]["selector"]["matchLabels"] == labels
    for name in ("network.yaml", "http.yaml"):
        assert read(f"kubernetes/{name}")["spec"]["selector"] == labels
        address = read(f"kubernetes/{name}")["metadata"]["name"]
        assert address in load_config(SETTINGS).http.allowed_hosts
    target = read("kubernetes/autoscaling.yaml")["spec"]["scaleTargetRef"]
    name = deployment["metadata"]["name"]
    assert target == {"apiVersion": deployment["apiVersion"], "kind": "Deployment", "name": name}
