"""Settings of the encoder of queries and passages."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError, field_validator, model_validator

from rerank.config.relevance import RelevanceCurve
from rerank.config.settings import Settings
from rerank.errors import ConfigError
from rerank.util.validation import problems_of
from rerank.util.yaml_files import parse_yaml

#: Poolings of token states, as sentence-transformers names them.
Pooling: TypeAlias = Literal["mean", "cls", "lasttoken"]
DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


class EncoderConfig(Settings):
    """Settings of the encoder. A text in place of the settings is its `name`, or YAML such as {name: DIR}.

    Attributes:
        name: name or folder of the sentence-transformers model. Default: all-MiniLM-L6-v2.
        query_prompt: text in front of every query, such as "query: ". Default: the prompt `query` of the folder's
            config_sentence_transformers.json, or none.
        document_prompt: text in front of every passage. Default: the folder's prompt `document`, `passage` or
            `corpus`, or none.
        pooling: how the states of the tokens become one vector: mean, cls (the first) or lasttoken. Needed for a folder
            without modules.json. Default: the folder's.
        end_token: token after every query and passage, for a tokenizer that writes none, such as "<|endoftext|>".
            Default: none.
        relevance: the curve that gives the relevance of results by their cosines, see below. Default: the curve of the
            default encoder; none for other encoders, whose results have no relevance.
    """

    name: Annotated[str, Field(min_length=1)] = DEFAULT_ENCODER
    query_prompt: str | None = None
    document_prompt: str | None = None
    pooling: Pooling | None = None
    end_token: str = ""
    relevance: RelevanceCurve | None = None

    @field_validator("name")
    @classmethod
    def _has_no_space_around(cls, name: str) -> str:
        if name != name.strip():
            raise ValueError("it begins or ends with white space, such as a line end; give the name alone")
        return name

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, settings: Any) -> Any:
        if not isinstance(settings, str):
            return settings
        if not settings.lstrip().startswith("{"):
            return {"name": settings}
        try:
            return parse_yaml(settings, "encoder").content
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def of(cls, given: EncoderConfig | str) -> EncoderConfig:
        """The settings in an argument of the command line. Raises: ConfigError."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            settings = parse_yaml(given, "encoder").content if isinstance(given, str) else given
            raise ConfigError(problems_of(error, settings, cls, lambda _: "encoder")) from error
