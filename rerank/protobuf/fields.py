"""Reads fields of requests as people write them: the command line's names of enum values, such as "sliding".

A candidate may be a plain text, may lack an id, and may have the field names that are usual in Python.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from rerank.errors import InvalidRequest
from rerank.names import FeedbackMethod, FirstStage, FirstStageKind, Name, OnFailure, StrategyKind, did_you_mean
from rerank.types import Completeness, ScoreKind
from rerank.v1 import rerank_pb2 as pb

E = TypeVar("E", bound=Enum)


def _values(kind: type[E], values: Any, prefix: str) -> dict[E, Any]:
    return {member: values.Value(f"{prefix}_{member.name}") for member in kind}


STRATEGIES = _values(StrategyKind, pb.StrategyKind, "STRATEGY_KIND")
FIRST_STAGES = _values(FirstStage, pb.FirstStage, "FIRST_STAGE")
FIRST_STAGE_KINDS = _values(FirstStageKind, pb.FirstStageKind, "FIRST_STAGE_KIND")
FEEDBACK_METHODS = _values(FeedbackMethod, pb.FeedbackMethod, "FEEDBACK_METHOD")
ON_FAILURE = _values(OnFailure, pb.OnFailure, "ON_FAILURE")
SCORE_KINDS = _values(ScoreKind, pb.ScoreKind, "SCORE_KIND")
COMPLETENESS = _values(Completeness, pb.Completeness, "COMPLETENESS")


M = TypeVar("M", bound=Message)

#: Enum of rerank.proto → its names in the command line, and their values.
_NAMES: dict[str, tuple[type[Name], Mapping[Any, int]]] = {
    "rerank.v1.StrategyKind": (StrategyKind, STRATEGIES),
    "rerank.v1.FirstStage": (FirstStage, FIRST_STAGES),
    "rerank.v1.FeedbackMethod": (FeedbackMethod, FEEDBACK_METHODS),
    "rerank.v1.OnFailure": (OnFailure, ON_FAILURE),
    "rerank.v1.FirstStageKind": (FirstStageKind, FIRST_STAGE_KINDS),
}
#: Arguments of the clients, which callers give to a request by mistake.
_CLIENT_ARGUMENTS = ("attempts", "credentials", "target")
#: Other name of a candidate's field → its name in rerank.proto.
_CANDIDATE_NAMES = {"_id": "doc_id", "docid": "doc_id", "id": "doc_id", "score": "first_stage_score"}


def request_message(kind: type[M], fields: Mapping[str, Any], **others: Any) -> M:
    """The message with these fields, see `with_enum_values`.

    Args:
        others: further fields, which are not checked.

    Raises:
        InvalidRequest: there is no such field, or a field cannot have the value.
    """
    return kind(
        **{name: _checked(kind, name, value) for name, value in with_enum_values(kind, fields).items()}, **others
    )


def with_enum_values(kind: type[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message, with enum values in place of names such as "sliding", "bm25" or "rocchio".

    A name may also stand for a message that has an enum: {"strategy": "sliding"} is {"strategy": {"kind": "sliding"}}.
    So may a number: {"first_stage_weight": 0.5} is {"first_stage_weight": {"number": 0.5}}.
    The id of a candidate may be an integer; a candidate without an id gets its 0-based position. Unknown fields of
    candidates are ignored, see `unread_candidate_fields`. Names of rerank.proto, such as "FIRST_STAGE_BM25", and all
    other values stay as they are.

    Args:
        fields: the caller must have checked the number of candidates.

    Raises:
        InvalidRequest: the request, or a message in it, has no such field; or an enum has no value of this name.
    """
    return _with_enum_values(cast(Descriptor, kind.DESCRIPTOR), fields, "")


def unread_candidate_fields(kind: type[Message], fields: Mapping[str, Any]) -> list[str]:
    """The names of the fields of candidates that `with_enum_values` ignores, without repetition.

    Args:
        fields: fields that `with_enum_values` accepts.
    """
    message = cast(Descriptor, kind.DESCRIPTOR).fields_by_name.get("candidates")
    if message is None or not isinstance(candidates := fields.get("candidates"), list):
        return []
    names = dict.fromkeys(name for candidate in candidates if isinstance(candidate, Mapping) for name in candidate)
    return [name for name in names if _candidate_field(message.message_type, name) is None]


def _candidate_field(message: Any, name: str) -> Any:
    return _field(message, _CANDIDATE_NAMES.get(name, name))


def _field(message: Any, name: str) -> Any:
    """The field of a message with this name, also in camel case; None if there is none."""
    return message.fields_by_name.get(name) or message.fields_by_camelcase_name.get(name)


def _with_enum_values(
    message: Any,
    fields: Mapping[str, Any],
    path: str,
    other_names: Mapping[str, str] = MappingProxyType({}),
    ignores_others: bool = False,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():  # ends at the first unknown name, so it is no longer than the message
        field = _field(message, other_names.get(name, name))
        if field is None and ignores_others:
            continue
        if field is None:
            raise _unknown_field(message, name, path)
        if field.name in found:
            raise InvalidRequest(f"{path}{name}", f"{field.name} is given twice; leave one out")
        found[field.name] = _value(field, value, f"{path}{field.name}")
    return found


def _value(field: FieldDescriptor, value: Any, path: str) -> Any:
    if field.enum_type is not None and field.enum_type.full_name in _NAMES and isinstance(value, str):
        return _enum_value(field.enum_type, value, path)
    if field.is_repeated and field.message_type is not None and value is not None:
        if not isinstance(value, list):
            raise InvalidRequest(path, f"{reprlib.repr(value)} is not a list; send a list of candidates")
        return [_candidate(field.message_type, candidate, index, path) for index, candidate in enumerate(value)]
    if field.message_type is not None and not field.is_repeated:
        parts = field.message_type.fields
        if isinstance(value, str) and (named := [part.name for part in parts if part.enum_type is not None]):
            value = {named[0]: value}
        elif isinstance(value, int | float) and "number" in field.message_type.fields_by_name:
            value = {"number": value}
        if isinstance(value, Mapping):
            return _with_enum_values(field.message_type, value, f"{path}.")
    return value


def _candidate(message: Any, candidate: object, index: int, path: str) -> Any:
    """The fields of a candidate; candidates are the only repeated message of requests."""
    if isinstance(candidate, str):
        return {"doc_id": str(index), "text": candidate}
    if not isinstance(candidate, Mapping):
        problem = f"{reprlib.repr(candidate)} is not a candidate; send an object with doc_id and text, or a text"
        raise InvalidRequest(f"{path}[{index}]", problem)
    found = _with_enum_values(message, candidate, f"{path}[{index}].", _CANDIDATE_NAMES, ignores_others=True)
    doc_id = found.get("doc_id")
    if doc_id is None or (isinstance(doc_id, int) and not isinstance(doc_id, bool)):
        found["doc_id"] = str(index if doc_id is None else doc_id)
    return found


def _enum_value(enum: EnumDescriptor, name: str, path: str) -> int:
    if name in enum.values_by_name:
        return int(enum.values_by_name[name].number)
    names, values = _NAMES[enum.full_name]
    return values[names.of(path, name)]


def _checked(kind: type[Message], name: str, value: Any) -> Any:
    """The value of a field. Raises: InvalidRequest if the field cannot have it."""
    try:
        kind(**{name: value})
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            name, f"{reprlib.repr(value)} is not a value of this field ({error}); see rerank.proto"
        ) from error
    return value


def _unknown_field(message: Descriptor, name: str, path: str) -> InvalidRequest:
    known = [field.name for field in message.fields]
    if not path and name in _CLIENT_ARGUMENTS:
        return InvalidRequest(
            name, f"{message.name} has no such field; give it to the client: RerankClient(…, {name}=…)"
        )
    return InvalidRequest(
        f"{path}{name}", f"{message.name} has no such field;{did_you_mean(name, known)} fields: {', '.join(known)}"
    )
