"""Pictures of an eval as files: figures that the code drew, and a value that is a picture."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Any

import click

from replctl.client.result import Result

ANY_IMAGE = "image/*"
_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "image/gif": "gif", "image/webp": "webp"}


def make_image_directory(directory: str) -> None:
    """Create the directory if it is missing. Raises a usage error if it cannot be written to."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"cannot create {directory}: {error.strerror}") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise click.UsageError(f"cannot write to {directory}")


def save_images(result: Result, directory: str) -> Iterator[str]:
    """Write each picture to a new file in a directory and yield its path. Raises OSError for a full disk.

    Names are `eval-N-M.SUFFIX`: N is the number of the eval, M counts from 1. A name that is taken is not used.
    """
    count = 0
    for bundle in (*result.images, result.mime or {}):
        for kind, data in bundle.items():
            if kind not in _SUFFIXES:
                continue
            while True:
                count += 1
                path = os.path.join(directory, f"eval-{result.eval_id}-{count}.{_SUFFIXES[kind]}")
                try:
                    with open(path, "xb") as file:
                        file.write(_decode(kind, data))
                except FileExistsError:
                    continue
                yield path
                break


def _decode(kind: str, data: Any) -> bytes:
    return str(data).encode() if kind == "image/svg+xml" else base64.b64decode(str(data))
