"""PE-Rank as a module to train: what it starts from, its forward pass, and how it is written for serving."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import save_torch_state_dict
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rerank.errors import CheckpointError
from rerank.manifest import TEMPLATE_FILE
from rerank.models.encoder import Encoder
from rerank.models.loading import read_config, read_weights
from rerank.models.projector import make_projector
from rerank.prompting.templates import PASSAGE_SLOT, QUERY_SLOT, Template, load_template
from rerank.rankers.pe_checkpoint import load_pe_checkpoint

#: In a list of token ids: here stands, behind the prompt, the vector of the passage that was chosen next.
CHOSEN_SLOT = -3

_TOKEN_EMBEDDINGS, _HEAD = "embed_tokens.weight", "lm_head.weight"
#: What a causal LM that has no projector yet gets, as in the paper.
_NEW_PROJECTOR = "mlp2x_gelu"


class PEModel(nn.Module):
    """Projector and transformer; the encoder is no part of it, for its vectors are computed before training.

    Args:
        transformer: without its vocabulary head.
        projector: encoder space → model space.
        settings: config.json of the result.
        own_vocabulary: the token embeddings are the checkpoint's own; otherwise they are the encoder's, and not saved.
        head: (vocabulary, D) output rows of the vocabulary; None where the token embeddings serve, or there are none.
    """

    head: Tensor | None

    def __init__(
        self,
        transformer: PreTrainedModel,
        projector: nn.Module,
        settings: PretrainedConfig,
        own_vocabulary: bool,
        head: Tensor | None,
    ) -> None:
        super().__init__()
        self.transformer: Any = transformer  # an adapter may be put around it
        self.projector = projector
        self.own_vocabulary = own_vocabulary
        self._settings = settings  # not `config`: Trainer would write into that
        self.register_buffer("head", head, persistent=False)

    def forward(self, input_ids: Tensor, vectors: Tensor, mask: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """The states of all positions (B, T, D), and the projected passages (B, N, D). Arguments as of `inputs`."""
        positions, passages = self.inputs(input_ids, vectors, mask, order)
        states: Tensor = self.transformer(inputs_embeds=positions, use_cache=False).last_hidden_state
        return states, passages

    def inputs(self, input_ids: Tensor, vectors: Tensor, mask: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """What the transformer reads (B, T, D), and the projected passages (B, N, D).

        Args:
            input_ids: (B, T) token ids and slots. Padding stands on the right, where a causal model never looks.
            vectors: (B, 1 + N, E) of query and passages; (B, N, E) where the prompt has no slot for the query.
            mask: (B, N), False behind short windows.
            order: (B, N) places of the passages in the order in which CHOSEN_SLOTs feed them back, padding last.
        """
        projected = self.projector(vectors)
        passages = projected[:, vectors.shape[1] - mask.shape[1] :]
        positions = self.transformer.get_input_embeddings()(input_ids.clamp(min=0))
        positions = torch.where((input_ids == QUERY_SLOT)[..., None], projected[:, :1], positions)
        positions = _filled(positions, input_ids == PASSAGE_SLOT, passages[mask])
        ranks = torch.arange(mask.shape[1], device=mask.device)
        fed_back = ranks < (input_ids == CHOSEN_SLOT).sum(dim=1)[:, None]  # (B, N)
        in_order = passages.gather(1, order[..., None].expand_as(passages))
        return _filled(positions, input_ids == CHOSEN_SLOT, in_order[fed_back]), passages

    def logits(self, states: Tensor) -> Tensor:
        """(…, D) → (…, vocabulary), by a head that does not learn."""
        head = self.transformer.get_input_embeddings().weight if self.head is None else self.head
        return states @ head.detach().T.to(states.dtype)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """What Trainer calls for --gradient_checkpointing."""
        self.transformer.gradient_checkpointing_enable(gradient_checkpointing_kwargs)

    def save_pretrained(self, folder: Path) -> None:
        """config.json and weights as `load_pe_checkpoint` reads them; an adapter is merged, for good."""
        if isinstance(self.transformer, PeftModel):
            self.transformer = self.transformer.merge_and_unload()
        weights = {f"model.{name}": tensor for name, tensor in self.transformer.state_dict().items()}
        if not self.own_vocabulary:
            del weights[f"model.{_TOKEN_EMBEDDINGS}"]
        weights |= {f"projector.{name}": tensor for name, tensor in self.projector.state_dict().items()}
        if self.head is not None:
            weights[_HEAD] = self.head
        self._settings.save_pretrained(folder)
        save_torch_state_dict(weights, folder)


@dataclass(frozen=True)
class PEBase:
    """What training starts from."""

    model: PEModel
    tokenizer: PreTrainedTokenizerBase
    template: Template
    context_tokens: int


def load_pe_base(folder: Path, encoder: Encoder, template: str | None, device: torch.device) -> PEBase:
    """A PE-Rank checkpoint (see `load_pe_checkpoint`), or a causal LM, which gets a new projector; all in float32.

    Args:
        template: for a base whose config.json names none.

    Raises:
        CheckpointError: it is neither, or was made for another encoder.
        ConfigError: no such template, or not the one that the checkpoint names.
    """
    settings = read_config(folder)
    if getattr(settings, "encoder_name", None) is None:
        return _of_causal_lm(folder, settings, encoder, template, device)
    loaded = load_pe_checkpoint(folder, encoder, device, template, "float32")
    settings.update({"template": TEMPLATE_FILE})
    head = read_weights(folder).get(_HEAD) if loaded.own_vocabulary else None
    head = None if head is None else head.float().to(device)
    model = PEModel(loaded.transformer, loaded.projector, settings, loaded.own_vocabulary, head)
    return PEBase(model, loaded.tokenizer, loaded.template, loaded.context_tokens)


def _of_causal_lm(
    folder: Path, settings: PretrainedConfig, encoder: Encoder, template: str | None, device: torch.device
) -> PEBase:
    try:
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"base {folder} is neither a PE-Rank checkpoint (its config.json names no encoder_name) nor a causal "
            f"language model that can be loaded: {error}"
        ) from error
    transformer = cast(PreTrainedModel, whole.base_model)
    if _TOKEN_EMBEDDINGS not in transformer.state_dict():
        raise CheckpointError(
            f"base {folder} is a {type(whole).__name__}, whose layers serving cannot read: no {_TOKEN_EMBEDDINGS}; "
            "use one that is shaped like Llama, Mistral or Qwen"
        )
    settings.update(_encoder_settings(encoder) | {"projector_type": _NEW_PROJECTOR, "template": TEMPLATE_FILE})
    projector = make_projector(_NEW_PROJECTOR, encoder.id.dimension, settings.hidden_size)
    head = None if settings.tie_word_embeddings else cast(nn.Linear, whole.get_output_embeddings()).weight.detach()
    model = PEModel(transformer, projector, settings, own_vocabulary=True, head=head).to(device)
    return PEBase(model, tokenizer, load_template(template or "pe_rank_text"), settings.max_position_embeddings)


def _encoder_settings(encoder: Encoder) -> dict[str, Any]:
    return {"encoder_name": encoder.id.name, "encoder_sha256": encoder.id.sha256, "encoder_pooling": encoder.pooling}


def let_learn(model: PEModel, transformer: bool, lora_rank: int = 0, lora_alpha: int = 1) -> None:
    """Says which weights learn: the projector always; the transformer, or an adapter of it, where asked for.

    Token embeddings that are the encoder's never do, for the result does not store them.
    """
    model.requires_grad_(False)
    model.projector.requires_grad_(True)
    if transformer and lora_rank:
        lora = LoraConfig(r=lora_rank, lora_alpha=lora_alpha, target_modules="all-linear")
        model.transformer = get_peft_model(model.transformer, lora)
    elif transformer:
        model.transformer.requires_grad_(True)
        model.transformer.get_input_embeddings().requires_grad_(model.own_vocabulary)


def _filled(positions: Tensor, slots: Tensor, vectors: Tensor) -> Tensor:
    """(B, T, D) with `vectors` (K, D) in the K slots (B, T) that are True, row after row."""
    return positions.masked_scatter(slots[..., None], vectors.to(positions.dtype))
