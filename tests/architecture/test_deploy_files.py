"""The deployment files are checked statically: no container engine is needed."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from core.config.load import load_config
from core.config.schema import HoneConfig

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()


def test_compose_has_every_process_and_service():
    """The compose file runs each Hone process, PostgreSQL, Redis and Prometheus."""
    assert set(COMPOSE["services"]) == {
        "postgres", "redis", "prepare", "gateway", "fleet", "worker", "learner", "release", "prometheus",
    }  # fmt: skip


def test_compose_variables_are_configuration_keys():
    """Every HONE_ variable that the compose file sets is one that the configuration loader accepts."""
    for service in COMPOSE["services"].values():
        given = {key: value for key, value in (service.get("environment") or {}).items() if key.startswith("HONE_")}
        variables = {key: re.sub(r"\$\{[^}]*\}", "secret", str(value)) for key, value in given.items()}
        assert isinstance(load_config(environment=variables | {"HONE_CONFIG": "/dev/null"}), HoneConfig)


def test_compose_holds_no_secret():
    """The database password comes from the environment and has no default."""
    text = (ROOT / "deploy/compose.yaml").read_text()
    assert "${HONE_POSTGRES_PASSWORD:?" in text
    assert not re.search(r"PASSWORD: [A-Za-z0-9]", text)


def test_only_the_worker_runs_as_root():
    """Root is kept for the one process whose sandbox needs private user ids."""
    roots = [name for name, service in COMPOSE["services"].items() if service.get("user") == "root"]
    assert roots == ["worker"]


def test_dockerfile_copies_what_exists():
    """Every path that the Dockerfile copies from the checkout is there."""
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source


def test_dockerfile_has_both_engine_stages_and_ends_unprivileged():
    """There is a CPU and a CUDA stage, and each ends as the unprivileged user."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {stage.split("\n")[0].split()[-1]: stage for stage in stages}
    for name in ("main", "cpu", "cuda"):
        assert re.findall(r"^USER (\w+)$", by_name[name], flags=re.MULTILINE)[-1] == "hone"


@pytest.mark.parametrize("path", sorted((ROOT / "deploy/config").glob("*.toml")), ids=lambda path: path.name)
def test_example_configurations_load(path):
    """Each example configuration is accepted as it stands."""
    assert tomllib.loads(path.read_text())
    assert isinstance(load_config(path, environment={}), HoneConfig)


def test_prometheus_scrapes_every_process_on_its_configured_port():
    """The scrape targets use the default ports of the schema."""
    targets = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    found = {job["static_configs"][0]["targets"][0] for job in targets}
    config = HoneConfig()
    assert found == {
        f"gateway:{config.gateway.port}",
        f"fleet:{config.fleet.metrics_port}",
        f"worker:{config.worker.metrics_port}",
        f"learner:{config.learner.metrics_port}",
    }
