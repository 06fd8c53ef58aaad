"""Which targets are this machine itself: no proxy leads to them."""

import pytest

from rerank.util.proxies import host_of, is_loopback, proxy_note


@pytest.mark.parametrize(
    ("target", "host", "loopback"),
    [
        ("127.0.0.1:50051", "127.0.0.1", True),
        ("127.8.0.1:1", "127.8.0.1", True),
        ("[::1]:1", "::1", True),
        ("ipv6:[::1]:1", "::1", True),
        ("dns:///localhost:1", "localhost", True),
        ("dns:LOCALHOST:1", "LOCALHOST", True),
        ("0.0.0.0:1", "0.0.0.0", True),
        ("10.0.0.1:1", "10.0.0.1", False),
        ("localhost.example.org:1", "localhost.example.org", False),
        ("unix:/run/rerank", "", False),
    ],
)
def test_loopback_is_found_in_every_form_of_a_target(target, host, loopback):
    assert host_of(target) == host
    assert is_loopback(host) is loopback


def test_note_names_the_variable_that_is_set_and_none_for_the_loopback(monkeypatch):
    monkeypatch.setenv("https_proxy", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert "the proxy of http_proxy, unless no_proxy lists h" in proxy_note("h", ("https_proxy", "http_proxy"))
    assert proxy_note("localhost", ("http_proxy",)) == proxy_note("h", ("https_proxy",)) == ""
