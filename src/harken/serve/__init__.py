"""The server: files and live speech for clients of OpenAI's audio API, browsers, Home Assistant and own programs."""

from harken.serve.app import make_app
from harken.serve.options import ServeOptions
from harken.serve.service import Service

__all__ = ["ServeOptions", "Service", "make_app"]
