"""What the tests of all integrations use."""

from tests.rerank.commands.conftest import rerank as rerank
