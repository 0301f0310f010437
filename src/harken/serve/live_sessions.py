"""The live sessions of a server: opened by one connection, and resumed by later ones."""

from __future__ import annotations

import hmac

from harken.serve.errors import RequestError
from harken.serve.live_hello import Hello, Resume
from harken.serve.live_session import LiveSession
from harken.serve.service import Service


class LiveSessions:
    """The sessions that somebody is connected to, or may resume.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions: dict[str, LiveSession] = {}

    def open(self, hello: Hello) -> LiveSession:
        """Open a session. Of those that have ended, the oldest cannot be resumed any more when there are many."""
        ended = [session for session in self._sessions.values() if session.finished]
        for session in ended[: max(0, len(ended) - self._service.options.max_streams)]:
            session.cancel()
        session = LiveSession(self._service, hello, self._forget)
        self._sessions[session.id] = session
        return session

    def resume(self, resume: Resume) -> LiveSession:
        """Return a session that its client wants to go on with.

        Raises
        ------
        RequestError
            If there is none, the token is not its, or the messages after the last received are not kept any more.
        """
        session = self._sessions.get(resume.session)
        token = session.token if session else ""
        if not hmac.compare_digest(token.encode(), resume.token.encode()) or not session:
            message = (
                "there is no such session, or it has another token; sessions end "
                f"{self._service.options.resume_s:g} s after a connection was lost"
            )
            raise RequestError(message, status=404, code="session_not_found", param="session")
        first, last = session.log.forgotten, session.log.last
        if not first <= resume.seq <= last:
            message = f"seq={resume.seq}: allowed is {first} to {last}; earlier messages are not kept any more"
            raise RequestError(message, code="messages_not_kept", param="seq")
        return session

    def _forget(self, session: LiveSession) -> None:
        self._sessions.pop(session.id, None)
