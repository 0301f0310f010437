"""Options of the server. The command line derives its flags from these fields, so each is declared once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

from harken.errors import OptionError
from harken.option_types import check, option
from harken.transcribe.replacement import Replacements

_server = partial(option, section="Server")
_access = partial(option, section="Access")
_limits = partial(option, section="Limits")

MAX_PORT = 65_535
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of the server.

    Raises
    ------
    OptionError
        If a value is not allowed; or if clients of other machines could use it by HTTP without a key, which takes
        ``auth=False``. The protocols of ``vosk`` and ``wyoming`` have no keys.
    """

    host: str = _server(
        "127.0.0.1", "Address to listen on; another than this machine's own takes an --api-key."
    )
    port: int = _server(8765, "Port to listen on; 0 takes a free one.", low=0, high=MAX_PORT)
    wyoming: str | None = _server(
        None, "Serve Home Assistant too: tcp://HOST:10300, unix://PATH, or stdio:// instead of HTTP."
    )
    vosk: str | None = _server(
        None, "Serve clients of Vosk's WebSocket too, such as FreeSWITCH, at HOST:PORT; they send no key."
    )
    preload: bool = _server(True, "Load the models before the first request.")
    unload_after_s: float = _server(
        0.0, "Seconds without a request after which a model leaves the memory; 0 keeps it.", low=0
    )
    drain_s: float = _server(
        30.0, "Seconds that files and streams in progress have to end once the server is told to.", low=0
    )
    certfile: str | None = _server(
        None, "Certificate for HTTPS, which browsers want for the microphone of other machines."
    )
    keyfile: str | None = _server(None, "Private key of the certificate.")
    speaker_model: str | None = _server(
        None, "Folder of the models that tell speakers apart; by default they are found like any model."
    )
    replace: tuple[str, ...] = _server(
        (),
        "File of names and spellings to replace, a line each: wrong = right; for requests that have none of their own.",
        from_file=True,
    )
    page: bool = _server(True, "Serve the page.")
    log_format: str = _server(
        "text", "Lines of the log on standard error: text, or json for machines.", choices=LOG_FORMATS
    )
    api_key: tuple[str, ...] = _access((), "Key that clients must send; also from HARKEN_API_KEY, one a line.")
    auth: bool = _access(True, "Refuse to serve other machines without a key.")
    origin: tuple[str, ...] = _access(
        (), "Further web pages, such as https://example.org, whose scripts may use the server; * for all."
    )
    allowed_host: tuple[str, ...] = _access(
        (),
        "Further names of this server, in the Host header of requests, such as that of a container; also from "
        "HARKEN_ALLOWED_HOST; * for all.",
    )
    max_upload_mb: float = _limits(1024.0, "Largest file, in megabytes.", above=0)
    max_audio_s: float = _limits(21_600.0, "Longest recording, in seconds.", above=0)
    max_queue_s: float = _limits(28_800.0, "Seconds of recordings that may be in progress together.", above=0)
    max_streams: int = _limits(64, "Live streams at the same time.", low=1)
    max_load: float = _limits(
        0.8, "Share of its time that the engine may need for live streams, as measured.", above=0
    )
    session_limit_s: float = _limits(3_600.0, "Longest live stream, in seconds; 0 for no limit.", low=0)
    idle_s: float = _limits(60.0, "Seconds without a message after which a live connection is closed.", above=0)
    resume_s: float = _limits(30.0, "Seconds that a live stream outlasts a lost connection.", low=0)

    def __post_init__(self) -> None:
        check(self)
        Replacements(self.replace)  # refuses lines that are none
        if (self.certfile is None) != (self.keyfile is None):
            given, missing = ("certfile", "keyfile") if self.keyfile is None else ("keyfile", "certfile")
            raise OptionError(given, getattr(self, given), f"a file together with {missing}")
        if not all(key and key.isascii() for key in self.api_key):
            raise OptionError("api_key", "...", "a key of ASCII characters that is not empty")
        for origin in self.origin:
            if not re.fullmatch(r"\*|null|[^/]+://[^/]*", origin):
                raise OptionError(
                    "origin", origin, "an origin such as https://example.org, without a path, or *"
                )
        for name in self.allowed_host:
            if re.search(r"[:/]", name):
                raise OptionError("allowed_host", name, "a name alone, without scheme and port, or *")
        if not (self.is_local or self.api_key or not self.auth):
            raise OptionError(
                "host",
                self.host,
                "an address of this machine alone, or any with an api_key, or with auth switched off",
            )

    @property
    def is_local(self) -> bool:
        """True if only programs on this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def host_and_port(url: str, otherwise: OptionError) -> tuple[str, int]:
    """Return the host and the port that an address names; raise the error if it does not name both."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise otherwise from None
    if not host or port is None:
        raise otherwise
    return host, port
