"""The contract on Ray Serve: the tests of `rerank serve` that call it by `stub` or `channel`, on two replicas."""

from inspect import signature
from types import ModuleType

import pytest

from tests.rerank.ports import test_server
from tests.rerank.ports.grpc import test_bad_requests, test_servicer
from tests.rerank.protobuf import test_messages
from tests.rerank.service import test_search

pytest.importorskip("ray", reason="needs the extra ray; `make ray-tests` installs it")
pytestmark = pytest.mark.ray

#: Fixtures that are the service on Ray Serve here.
_OURS = {"stub", "channel"}


def _tests_of(module: ModuleType) -> dict[str, object]:
    """The tests of a module that call the service over the network."""
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    return {name: test for name, test in tests.items() if callable(test) and _OURS & set(signature(test).parameters)}


for module in (test_bad_requests, test_messages, test_search, test_server, test_servicer):
    found = _tests_of(module)
    assert found, f"{module.__name__} has no test of the service"
    globals().update(found)
