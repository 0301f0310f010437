"""The live sessions of a server: opened by one connection, and resumed by later ones."""

from __future__ import annotations

import hmac

from harken.serve.errors import RequestError
from harken.serve.service import Service
from harken.serve.streams.hello import Hello, Resume
from harken.serve.streams.resumable_session import ResumableSession


class ResumableSessions:
    """The sessions that somebody is connected to, or may resume.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions: dict[str, ResumableSession] = {}

    def open(self, hello: Hello) -> ResumableSession:
        """Open a session. Of those that have ended, the oldest cannot be resumed any more when there are many."""
        ended = [session for session in self._sessions.values() if session.finished]
        for session in ended[: max(0, len(ended) - self._service.options.max_streams)]:
            session.cancel()
        session = ResumableSession(self._service, hello, self._forget)
        self._sessions[session.id] = session
        return session

    def resume(self, resume: Resume) -> ResumableSession:
        """Return a session that its client wants to go on with.

        Raises
        ------
        RequestError
            If there is none, or the token is not its.
        """
        session = self._sessions.get(resume.session)
        token = session.token if session else ""
        if not hmac.compare_digest(token.encode(), resume.token.encode()) or not session:
            message = (
                "there is no such session, or it has another token; sessions end "
                f"{self._service.options.resume_s:g} s after a connection was lost"
            )
            raise RequestError(message, status=404, code="session_not_found", param="session")
        return session

    def _forget(self, session: ResumableSession) -> None:
        self._sessions.pop(session.id, None)
