"""The zero-initialised PE-Rank checkpoint fits any encoder."""

from rerank.checkpoints.settings_files import read_settings
from rerank.models.projector import write_zero_init_checkpoint
from tests.small_encoder import write_small_encoder


def test_encoder_narrower_than_a_head_gets_one_head(encoder, tmp_path):
    narrow = write_small_encoder(tmp_path / "encoder", encoder)
    write_zero_init_checkpoint(narrow, tmp_path / "checkpoint")
    config = read_settings(tmp_path / "checkpoint" / "config.json")
    assert config["hidden_size"] == narrow.id.dimension < 64
    assert config["num_attention_heads"] == 1
