"""PE-Rank as a trainable module: loads it from a base, and saves it in a layout that serving reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from huggingface_hub import save_torch_state_dict
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.checkpoints.settings_files import check_settings
from rerank.checkpoints.weights import read_config, weight_files
from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.models.loading import load_weights
from rerank.models.projector import make_projector
from rerank.models.tokenizer import load_tokenizer
from rerank.prompting.templates import Template, load_template
from rerank.prompting.vector_prompts import PASSAGE_SLOT, QUERY_SLOT, VectorPrompts
from rerank.rankers.pe_adapter import PROJECTOR_FILE
from rerank.rankers.pe_checkpoint import (
    HEAD,
    TOKEN_EMBEDDINGS,
    is_aligned_projector,
    load_aligned_projector,
    load_pe_checkpoint,
    read_pe_weights,
)
from rerank.util.files import sha256_of_files
from rerank_training.trainer.checkpoint import add_adapter

#: Placeholder among token ids, after the prompt, for the vector of the next chosen passage.
CHOSEN_SLOT = -3

#: Names of the projector's weights in published checkpoints.
PROJECTOR_PREFIX = "model.projector."
#: Type of the new projector of a causal LM, as in the paper.
_NEW_PROJECTOR = "mlp2x_gelu"


class PEModel(nn.Module):
    """Projector and transformer. The encoder is not part of it, because its vectors are computed before training.

    Args:
        transformer: the transformer without its vocabulary head.
        projector: vectors of the encoder (…, E) → input embeddings of the transformer (…, D).
        settings: content of config.json in this package's layout.
        own_vocabulary: True if the checkpoint has token embeddings; False if it uses those of the encoder, which are
            not saved.
        head: (vocabulary, D) output embeddings; None if they are tied to the token embeddings or do not exist.

    Attributes:
        layout: layout of the checkpoint's files; None: this package's, see `load_pe_checkpoint`.
    """

    head: Tensor | None
    layout: Layout | None = None

    def __init__(
        self,
        transformer: PreTrainedModel,
        projector: nn.Module,
        settings: PretrainedConfig,
        own_vocabulary: bool,
        head: Tensor | None,
    ) -> None:
        super().__init__()
        self.transformer: Any = transformer  # may be wrapped in an adapter
        self.projector = projector
        self.own_vocabulary = own_vocabulary
        self.settings = settings  # not `config`, which Trainer would change
        self.register_buffer("head", head, persistent=False)

    def forward(self, input_ids: Tensor, vectors: Tensor, mask: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Final hidden states (B, T, D) and projected passages (B, N, D). The arguments are those of `embed`."""
        embeddings, passages = self.embed(input_ids, vectors, mask, order)
        states: Tensor = self.transformer(inputs_embeds=embeddings, use_cache=False).last_hidden_state
        return states, passages.clone()  # FSDP does not notice all uses of a view

    def embed(self, input_ids: Tensor, vectors: Tensor, mask: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Input embeddings of the transformer (B, T, D) and projected passages (B, N, D).

        Args:
            input_ids: (B, T) token ids and slots, padded at the end.
            vectors: vectors of query and passages (B, 1 + N, E), or of passages (B, N, E) without a QUERY_SLOT.
            mask: (B, N), False at the padding of short windows.
            order: (B, N) positions of the passages in the order in which CHOSEN_SLOTs feed them back, padding last.
        """
        projected = self.projector(vectors)
        passages = projected[:, vectors.shape[1] - mask.shape[1] :]
        embeddings = self.transformer.get_input_embeddings()(input_ids.clamp(min=0))
        embeddings = torch.where((input_ids == QUERY_SLOT)[..., None], projected[:, :1], embeddings)
        embeddings = _fill(embeddings, input_ids == PASSAGE_SLOT, passages[mask])
        ranks = torch.arange(mask.shape[1], device=mask.device)
        fed_back = ranks < (input_ids == CHOSEN_SLOT).sum(dim=1)[:, None]  # (B, N)
        in_order = passages.gather(1, order[..., None].expand_as(passages))
        return _fill(embeddings, input_ids == CHOSEN_SLOT, in_order[fed_back]), passages

    def logits(self, states: Tensor) -> Tensor:
        """(…, D) hidden states → (…, vocabulary) logits. The head is not trained."""
        head = self.transformer.get_input_embeddings().weight if self.head is None else self.head
        return states @ head.detach().T.to(states.dtype)

    def get_input_embeddings(self) -> nn.Module:
        """Called by Trainer for --neftune-noise-alpha, which adds noise to tokens but not to vectors of passages."""
        embeddings: nn.Module = self.transformer.get_input_embeddings()
        return embeddings

    def activation_checkpointing_enable(self, **given: Any) -> None:
        """Called by Trainer for --gradient-checkpointing."""
        self.transformer.activation_checkpointing_enable(**given)

    def save_pretrained(self, folder: Path) -> None:
        """Writes config.json and weights. An adapter is merged into the weights for good."""
        if isinstance(self.transformer, PeftModel):
            self.transformer = self.transformer.float().merge_and_unload()  # in bfloat16, small changes would be lost
        weights = {f"model.{name}": tensor for name, tensor in self.transformer.state_dict().items()}
        if not self.own_vocabulary:
            del weights[TOKEN_EMBEDDINGS]
        prefix = "projector." if self.layout is None else PROJECTOR_PREFIX
        weights |= {f"{prefix}{name}": tensor for name, tensor in self.projector.state_dict().items()}
        if self.head is not None:
            weights[HEAD] = self.head
        if self.layout is not None:
            self.layout.write(folder, weights)
            return
        self.settings.save_pretrained(folder)
        save_torch_state_dict(weights, folder)


class Layout(Protocol):
    """The files of a trained checkpoint."""

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the files.

        Args:
            weights: weights of the transformer as model.*, of the projector as model.projector.*, and of the head.
        """


@dataclass(frozen=True)
class PEBase:
    """Model, tokenizer and prompt template that training starts from.

    Attributes:
        folder: folder of the base.
        causal_lm: folder, or name on the hub, of a causal LM without PE-Rank's weights; empty for a PE-Rank model.
        context_tokens: largest number of positions that the model reads.
        revision: SHA-256 of the weights of the base.
    """

    model: PEModel
    tokenizer: PreTrainedTokenizerBase
    template: Template
    context_tokens: int
    folder: Path
    causal_lm: str
    revision: str

    def prompts(self, template: Template, text_tokens: int) -> VectorPrompts:
        """Prompts of a template, as serving renders them. Texts are truncated to `text_tokens`."""
        return VectorPrompts(template, self.tokenizer, self.model.own_vocabulary, text_tokens)


def load_pe_base(folder: Path, encoder: Encoder, template: str | None) -> PEBase:
    """Loads a PE-Rank checkpoint (see `load_pe_checkpoint`) or a causal LM, in float32 on the CPU.

    A causal LM gets a new projector, or that of an alignment, see `is_aligned_projector`.

    Args:
        template: prompt template for a base without one.

    Raises:
        CheckpointError: the base is neither a PE-Rank checkpoint nor a causal LM, or was trained for another encoder.
        ConfigError: the template does not exist or is not that of the checkpoint, or the causal LM of a projector or an
            adapter cannot be found.
    """
    if is_aligned_projector(folder):
        projector, causal_lm = load_aligned_projector(folder, encoder)
        return _from_causal_lm(folder, causal_lm, encoder, template, projector)
    settings = read_config(folder)
    if getattr(settings, "encoder_name", None) is None:
        return _from_causal_lm(folder, str(folder), encoder, template)
    loaded = load_pe_checkpoint(folder, encoder, torch.device("cpu"), template, "float32")
    settings.update({"template": TEMPLATE_FILE, "vocab_size": loaded.transformer.config.vocab_size})
    head = read_pe_weights(folder, torch.float32)[0].get(HEAD) if loaded.own_vocabulary else None
    head = None if head is None else head.float()
    model = PEModel(loaded.transformer, loaded.projector, settings, loaded.own_vocabulary, head)
    return PEBase(model, loaded.tokenizer, loaded.template, loaded.context_tokens, folder, "", loaded.revision)


def _from_causal_lm(
    folder: Path, causal_lm: str, encoder: Encoder, template: str | None, projector: nn.Module | None = None
) -> PEBase:
    """A causal LM with a projector as a base.

    Args:
        folder: folder of the base: of the aligned projector if there is one, otherwise of the causal LM.
        projector: the aligned projector; None for a new one.

    Raises:
        CheckpointError: the causal LM cannot be loaded, or its layers have other names than serving reads.
    """
    try:
        check_settings(Path(causal_lm))
        settings: Any = AutoConfig.from_pretrained(causal_lm, trust_remote_code=False)
        loaded = load_weights(causal_lm, torch.float32)
        tokenizer = load_tokenizer(causal_lm)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"base {causal_lm} is neither a PE-Rank checkpoint (its config.json names no encoder_name) nor a causal "
            f"language model that can be loaded: {error}"
        ) from error
    transformer = cast(PreTrainedModel, loaded.base_model)
    if TOKEN_EMBEDDINGS.removeprefix("model.") not in transformer.state_dict():
        raise CheckpointError(
            f"base {causal_lm} is a {type(loaded).__name__}, whose layers serving cannot read: no {TOKEN_EMBEDDINGS}; "
            "use a base with the layout of Llama, Mistral or Qwen"
        )
    kind = _NEW_PROJECTOR if projector is None else str(read_config(folder).projector_type)
    settings.update(_encoder_settings(encoder) | {"projector_type": kind, "template": TEMPLATE_FILE})
    projector = projector or make_projector(kind, encoder.id.dimension, settings.hidden_size)
    head = None if settings.tie_word_embeddings else cast(nn.Linear, loaded.get_output_embeddings()).weight.detach()
    model = PEModel(transformer, projector, settings, own_vocabulary=True, head=head)
    own = folder / TEMPLATE_FILE  # of an alignment by this package
    words = load_template(template or (str(own) if own.is_file() else "pe_rank_text"))
    files = [folder / PROJECTOR_FILE] if is_aligned_projector(folder) else weight_files(folder)
    revision = sha256_of_files(files)
    return PEBase(model, tokenizer, words, settings.max_position_embeddings, folder, causal_lm, revision)


def _encoder_settings(encoder: Encoder) -> dict[str, Any]:
    return {
        "encoder_name": encoder.id.name,
        "encoder_sha256": encoder.id.vectors_sha256,
        "encoder_pooling": encoder.pooling,
    }


def set_trainable(model: PEModel, transformer: bool, lora_rank: int = 0) -> None:
    """Selects the weights that are trained: the projector, and with `transformer` the transformer or a new adapter.

    The encoder's token embeddings are never trained, because the checkpoint does not store them.
    """
    model.requires_grad_(False)
    model.projector.requires_grad_(True)
    if transformer and lora_rank:
        model.transformer = add_adapter(model.transformer, lora_rank)
    elif transformer:
        model.transformer.requires_grad_(True)
        model.transformer.get_input_embeddings().requires_grad_(model.own_vocabulary)


def _fill(embeddings: Tensor, slots: Tensor, vectors: Tensor) -> Tensor:
    """(B, T, D) embeddings, where `vectors` (K, D) replace, in order, the K positions that `slots` (B, T) marks."""
    return embeddings.masked_scatter(slots[..., None], vectors.to(embeddings.dtype))
