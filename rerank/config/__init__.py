"""Configuration of the service: frozen pydantic models of its YAML file, with units in the names of the settings."""

from rerank.config.encoder import DEFAULT_ENCODER, EncoderConfig
from rerank.config.loading import load_config
from rerank.config.models import (
    ApiModel,
    CrossEncoderModel,
    E2RankModel,
    FirstModel,
    FusionInDecoderModel,
    FusionModel,
    GenerationModel,
    IdentityModel,
    JinaListwiseModel,
    LanguageModel,
    LateInteractionModel,
    ModelConfig,
    PERankModel,
)
from rerank.config.served import InferenceServerSettings, RerankServerSettings, ServerSettings
from rerank.config.service import (
    BUNDLED_MODELS,
    EngineConfig,
    HttpConfig,
    Limits,
    ServiceConfig,
    TelemetryConfig,
    TLSConfig,
)
from rerank.config.settings import Positive, Settings
from rerank.types import Precision

__all__ = [
    "BUNDLED_MODELS",
    "DEFAULT_ENCODER",
    "ApiModel",
    "CrossEncoderModel",
    "E2RankModel",
    "EncoderConfig",
    "EngineConfig",
    "FirstModel",
    "FusionInDecoderModel",
    "FusionModel",
    "GenerationModel",
    "HttpConfig",
    "IdentityModel",
    "InferenceServerSettings",
    "JinaListwiseModel",
    "LanguageModel",
    "LateInteractionModel",
    "Limits",
    "ModelConfig",
    "PERankModel",
    "Positive",
    "Precision",
    "RerankServerSettings",
    "ServerSettings",
    "ServiceConfig",
    "Settings",
    "TLSConfig",
    "TelemetryConfig",
    "load_config",
]
