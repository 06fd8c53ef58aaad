"""Configuration of the service: frozen pydantic models of its YAML file, with units in the names of the settings."""

from rerank.config.loading import load_config
from rerank.config.models import (
    CrossEncoderModel,
    FirstModel,
    GenerationModel,
    IdentityModel,
    InterpolationConfig,
    ModelConfig,
    PERankModel,
    Precision,
    PromptConfig,
    QueryLikelihoodModel,
    ServableModel,
)
from rerank.config.network import ConnectionsConfig, TLSConfig
from rerank.config.served import ServedBy
from rerank.config.service import BUNDLED_MODELS, EngineConfig, Limits, ServiceConfig
from rerank.config.settings import Positive, Settings
from rerank.config.telemetry import TelemetryConfig

__all__ = [
    "BUNDLED_MODELS",
    "ConnectionsConfig",
    "CrossEncoderModel",
    "EngineConfig",
    "FirstModel",
    "GenerationModel",
    "IdentityModel",
    "InterpolationConfig",
    "Limits",
    "ModelConfig",
    "PERankModel",
    "Positive",
    "Precision",
    "PromptConfig",
    "QueryLikelihoodModel",
    "ServableModel",
    "ServedBy",
    "ServiceConfig",
    "Settings",
    "TLSConfig",
    "TelemetryConfig",
    "load_config",
]
