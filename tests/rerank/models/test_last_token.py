"""Reading last tokens: many sequences together and alone, and the identifier head."""

import copy

import pytest
import torch
from transformers import AutoModel

from rerank.models.last_token import IdentifierHead, LastTokenReader
from tests.random_models import DECODERS, last_logits, random_model, random_sequences


@pytest.mark.parametrize("name", DECODERS)
def test_sequences_read_together_give_what_each_gives_alone(name):
    expected = last_logits(random_model(DECODERS[name]), random_sequences())
    assert expected.std() > 0.1, "equal logits would prove nothing"
    reader = LastTokenReader(random_model(DECODERS[name]))
    torch.testing.assert_close(reader.read(random_sequences()), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", DECODERS)
def test_outputs_at_places_are_those_of_a_plain_pass(name):
    sequences = random_sequences()
    places = [[0, len(ids) - 1, len(ids) // 2][: 1 + row % 3] for row, ids in enumerate(sequences)]
    plain = random_model(DECODERS[name])
    with torch.inference_mode():
        expected = [plain(input_ids=ids[None]).logits[0, at] for ids, at in zip(sequences, places, strict=True)]
    found = LastTokenReader(random_model(DECODERS[name])).read_at(sequences, places)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_sequences_share_a_pass_unless_positions_depend_on_its_length():
    passes = {}
    for name in ("llama", "llama with dynamic positions"):
        model, calls = random_model(DECODERS[name]), list[object]()
        reader = LastTokenReader(model)
        reader.between_layers = lambda: calls.append(None)  # noqa: B023
        reader.read(random_sequences())
        passes[reader.supports_batching] = len(calls) / model.config.num_hidden_layers
    assert passes == {True: 1, False: len(random_sequences())}


def test_transformer_without_a_head_gives_its_last_states():
    torch.manual_seed(0)
    transformer = AutoModel.from_config(copy.deepcopy(DECODERS["llama"])).eval()
    vectors = [transformer.get_input_embeddings()(ids).detach() for ids in random_sequences()]
    with torch.inference_mode():
        expected = [transformer(inputs_embeds=row[None]).last_hidden_state[0, -1] for row in vectors]
    torch.testing.assert_close(LastTokenReader(transformer).read(vectors), torch.stack(expected), atol=1e-5, rtol=0)


def test_identifier_head_computes_in_float32_inside_autocast_too():
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 100)
    hidden = torch.randn(3, 64).bfloat16()
    rows = IdentifierHead(head.bfloat16(), [5, 7])
    expected = hidden.double() @ head.weight[[5, 7]].double().T + head.bias[[5, 7]].double()
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = rows(hidden)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=0)
