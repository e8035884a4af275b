"""Documentation of struct fields: description, unit and range, beside the field's type."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
from msgspec import Meta


def documented(text: str, unit: str = "", low: int | None = None, high: int | None = None, **constraints: Any) -> Meta:
    """Describe a field, for `Annotated`.

    Args:
        text: description for the docs, `describe` and the config listing
        unit: unit of a number, such as `ms` or `bytes`
        low: smallest valid number
        high: largest valid number
        constraints: further constraints of msgspec.Meta
    """
    extra = {"unit": unit} if unit else None
    return Meta(description=text, ge=low, le=high, extra=extra, **constraints)


def descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each field by its wire name; "" if it has none."""
    hints = get_type_hints(struct, include_extras=True)
    fields = msgspec.structs.fields(struct)
    metas = {field.encode_name: getattr(hints[field.name], "__metadata__", ()) for field in fields}
    return {name: meta[0].description if meta else "" for name, meta in metas.items()}
