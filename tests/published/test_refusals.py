"""`rerank serve` refuses a checkpoint that is not whole: one line with the names and the way out, and nothing runs."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from rerank.commands.cli import main
from rerank.models.encoder import Encoder
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import metaspace

Damage = Callable[[Path, Path], None]


def truncated_encoder(encoder: Path, model: Path) -> None:
    file = encoder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])


def missing_weight(encoder: Path, model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated_encoder, r"error: encoder .*/encoder cannot be loaded: .*"),
        (missing_weight, r"error: .*without model\.layers\.0\.self_attn\.q_proj\.weight\. Download it again, or.*"),
    ],
)
def test_checkpoint_that_is_not_whole_is_not_served(
    damage: Damage,
    message: str,
    encoder: Encoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(encoder.folder, tmp_path / "encoder"))
    model = write_causal_lm(tmp_path / "model", "mistral", metaspace())
    damage(folder, model)
    settings = {
        "listen": "127.0.0.1:0",
        "device": "cpu",
        "encoder": str(folder),
        "models": [{"name": "it", "ranker": "first", "path": str(model)}],
    }
    (tmp_path / "service.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["rerank", "serve", "--config", str(tmp_path / "service.yaml")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capfd.readouterr()
    assert "listening" not in printed.out
    assert re.fullmatch(message, printed.err.strip().splitlines()[-1])
