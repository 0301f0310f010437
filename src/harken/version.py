"""The version of harken."""

__version__ = "0.1.0"
