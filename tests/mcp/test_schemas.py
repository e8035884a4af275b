"""Descriptions of the tools for models: names, schemas, and the amount of text."""

from __future__ import annotations

import json

import jsonschema
import pytest

from replctl.tools import SETS, ToolSettings, toolset
from replctl.tools.catalog import FORMATS


@pytest.mark.parametrize("set", SETS)
@pytest.mark.parametrize("form", FORMATS)
def test_every_schema_is_a_schema(set: str, form: str) -> None:
    key = {"mcp": "inputSchema", "openai": "parameters", "anthropic": "input_schema"}[form]
    for entry in toolset(set).schemas(form):
        tool = entry["function"] if form == "openai" else entry
        jsonschema.Draft202012Validator.check_schema(tool[key])
        assert form == "mcp" or tool[key]["additionalProperties"] is False
        assert tool["description"]


def test_the_default_list_is_short() -> None:
    text = json.dumps({"tools": toolset().schemas("mcp")}, separators=(",", ":"))
    assert len(text) <= 4000
    assert '"read"' in text


@pytest.mark.parametrize(
    ("set", "names"),
    [
        ("default", "eval read interrupt reset sessions info env stdin"),
        (
            "reply",
            "julia_eval julia_complete julia_lookup julia_load_file julia_interrupt julia_new_session "
            "julia_list_sessions julia_close_session",
        ),
        ("slim", "eval info reset"),
        ("full", "eval read interrupt reset sessions info env stdin view edit"),
        ("agentrepl", "eval reset info pkg activate"),
        ("nexo", "Repl"),
    ],
)
def test_a_set_has_the_names_it_promises(set: str, names: str) -> None:
    assert toolset(set).names == names.split()


def test_an_unknown_set_is_named() -> None:
    with pytest.raises(ValueError, match="no tool set 'lisp'; there are default, full, slim, reply, agentrepl, nexo"):
        toolset("lisp")


def test_a_call_is_answered_before_clients_give_up() -> None:
    assert 30 <= ToolSettings().wait < 60  # the TypeScript SDK and what is built on it wait for a minute
