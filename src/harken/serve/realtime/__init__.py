"""OpenAI's Realtime transcription: live speech over a WebSocket, in the present dialect and in the beta one."""

from harken.serve.realtime.routes import routes

__all__ = ["routes"]
