"""Settings that Ray Serve cannot follow are refused, with the way out."""

from contextlib import nullcontext
from typing import Any

import pytest

from rerank.config import load_config
from rerank.errors import ConfigError

pytest.importorskip("ray", reason="needs the extra ray; `make ray-tests` installs it")

#: Description → settings, and a pattern in the message.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "loopback": ({"listen": "127.0.0.1:50051"}, r"listen 127.0.0.1:50051: .* set it to \[::\]:PORT"),
    "no keys": ({"insecure": None}, r"require keys .* or accept that with --insecure"),
    "http": ({"http": "127.0.0.1:8080"}, "http: .* serve HTTP with `rerank serve`"),
    "tls": ({"tls": {"certificate": "a", "key": "b"}}, "tls: .* encrypt in a proxy"),
    "traces": ({"telemetry": {"traces": True}}, "telemetry.traces: .* trace with Ray"),
    "missing folder": ({"models": [{"name": "a", "ranker": "pe-rank", "path": "/no"}]}, "there is no folder /no"),
}


@pytest.mark.parametrize(
    ("metrics", "scale", "is_refused"),
    [
        ("127.0.0.1:9090", {"replicas": 2}, True),
        ("127.0.0.1:9090", {"max_replicas": 2}, True),
        ("127.0.0.1:9090", {"replicas": 1}, False),
        ("127.0.0.1:0", {"replicas": 2}, False),
    ],
)
def test_replicas_that_would_share_an_address_of_metrics_are_refused(metrics, scale, is_refused):
    from rerank.integrations.ray_serve.application import Scale, check

    config = load_config(None, listen="[::]:50051", insecure=True, telemetry={"metrics": metrics})
    expected = pytest.raises(ConfigError, match="2 replicas on a machine cannot share a port; give port 0")
    with expected if is_refused else nullcontext():
        check(config, Scale(**scale))


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_ray_serve_cannot_follow_are_refused(settings, message):
    from rerank.integrations.ray_serve.application import check

    config = load_config(None, **{"listen": "[::]:50051", "insecure": True} | settings)
    with pytest.raises(ConfigError, match=message):
        check(config)
