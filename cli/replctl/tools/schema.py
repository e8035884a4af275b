"""Tool arguments: structs, their JSON Schema for models, and parsing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from replwire.identifiers import DEFAULT_SESSION

Args = TypeVar("Args", bound=msgspec.Struct)


class BadArguments(ValueError):
    """The arguments are invalid; the text is for the model that sent them."""


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a struct's JSON Schema as a closed object without references, titles or nulls."""
    (raw,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    shape = _plain(parts[raw["$ref"]])
    schema = {"type": "object", "properties": shape.get("properties", {}), "additionalProperties": False}
    if shape.get("required"):
        schema["required"] = shape["required"]
    return schema


def read_arguments(kind: type[Args], given: Mapping[str, Any] | None) -> Args:
    """Parse the arguments into a struct. Null counts as absent, and `"5"` is accepted as a number.

    Raises:
        BadArguments: The arguments do not fit.
    """
    present = {name: value for name, value in (given or {}).items() if value is not None}
    try:
        return msgspec.convert(present, kind, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        what = str(error).replace(" - at `$.", " in `").replace("Object ", "")
        if what.startswith("Invalid enum value") and (named := re.search(r" in `(\w+)`\Z", what)):
            what += f": {', '.join(schema_of(kind)['properties'][named[1]]['enum'])}"
        raise BadArguments(f"bad arguments: {what}. This tool takes: {names or 'nothing'}") from None


def _plain(node: Any) -> Any:
    """Return a schema without parts that a model need not read.

    These are titles, null alternatives, defaults that mean "not given" or the default session, and a minimum of 0,
    which is checked all the same.
    """
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    if "anyOf" in node:
        others = [each for each in node["anyOf"] if each.get("type") != "null"]
        if len(others) == 1:
            node = {**others[0], **{key: value for key, value in node.items() if key != "anyOf"}}
    if isinstance(node.get("enum"), list) and None in node["enum"]:
        node = {**node, "enum": [each for each in node["enum"] if each is not None]}
    dropped = {"title"}
    if node.get("default") in (None, False, [], {}, DEFAULT_SESSION):
        dropped.add("default")
    if node.get("minimum") == 0:
        dropped.add("minimum")
    return {
        key: {name: _plain(each) for name, each in value.items()} if key == "properties" else _plain(value)
        for key, value in node.items()
        if key not in dropped
    }
