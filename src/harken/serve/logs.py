"""The log of the server on standard error: lines of text, or of JSON for machines; never what was said."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def configure(log_format: str) -> None:
    """Write the log of the server to standard error.

    Parameters
    ----------
    log_format : {"text", "json"}
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter("%(asctime)s %(message)s"))
    for name in ("harken.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("harken.serve").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes what damaged forms hold


class TextFormatter(logging.Formatter):
    """A line with the time, the event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items() if value != "")
        return f"{super().format(record)} {fields}".rstrip()


class JsonFormatter(logging.Formatter):
    """A line with a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line | _fields(record))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields
