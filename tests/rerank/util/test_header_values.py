"""Keys as people have them: with the line end of a file, or with letters that no header has."""

import pytest

from rerank.access.credentials import Credentials
from rerank.config.served import InferenceServerSettings
from rerank.errors import ConfigError
from rerank.models.loading import check_findable
from rerank.util.header_values import check_header_value

BAD = [
    ("abc\n", "begins or ends with white space, such as the line end of the file that it comes from; set it without"),
    (" abc", "begins or ends with white space"),
    ("a\u043ac", r"has the character U\+043A at position 2; only letters, digits and signs of ASCII"),
    ("a\x01c", r"has the character U\+0001 at position 2"),
]


@pytest.mark.parametrize("value", ["", "rerank_A-z_9", "user name", "!~"])
def test_printable_ascii_can_be_sent(value):
    check_header_value("a key", value)


@pytest.mark.parametrize(("value", "problem"), BAD)
def test_key_that_cannot_be_sent_is_refused_by_its_variable_and_not_shown(monkeypatch, value, problem):
    """gRPC answered with its source code, and a model behind a server was refused by a name that it does not have."""
    monkeypatch.setenv("RERANK_API_KEY", value)
    with pytest.raises(ConfigError, match=rf"the API key \(RERANK_API_KEY\) {problem}") as caught:
        Credentials.from_environment()
    assert value not in str(caught.value)
    monkeypatch.setenv("VLLM_KEY", value)
    server = InferenceServerSettings(kind="vllm", url="http://gpu1", model="m", api_key_env="VLLM_KEY")
    with pytest.raises(ConfigError, match=f"the environment variable VLLM_KEY {problem}"):
        server.api_key()


def test_key_of_the_hub_that_cannot_be_sent_is_named(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "\u043a")
    with pytest.raises(ConfigError, match=r"the environment variable HF_TOKEN has the character U\+043A"):
        check_findable("organisation/model", "encoder", "give another")
