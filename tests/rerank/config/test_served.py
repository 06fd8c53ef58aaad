"""Settings of models in inference servers."""

import pytest
from pydantic import ValidationError

from rerank.config import FirstModel, GenerationModel, InferenceServerSettings

SERVERS = {"kind": "vllm", "url": "http://gpu1:8000/", "model": "zephyr"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "gpu1:8000"}, "write it as http://HOST:PORT"),
        ({"url": "ftp://gpu1"}, "write it as http://HOST:PORT"),
        ({"url": "http://gpu1/?a=b"}, "write it as http://HOST:PORT"),
        ({"model": ""}, "at least 1 character"),
        ({"kind": "tgi"}, "'vllm' or 'llama-cpp'"),
        ({"max_in_flight": 0}, "greater than 0"),
        ({"port": 8000}, "Extra inputs"),
    ],
)
def test_settings_that_no_server_can_have_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        InferenceServerSettings.model_validate(SERVERS | settings)


@pytest.mark.parametrize("kind", [FirstModel, GenerationModel])
def test_served_model_needs_the_path_of_its_tokenizer(kind):
    name = "first" if kind is FirstModel else "generation"
    with pytest.raises(ValidationError, match="needs `path`"):
        kind(name="zephyr", ranker=name, served_by=SERVERS)
