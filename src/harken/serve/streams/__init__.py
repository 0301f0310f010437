"""The own WebSocket: live streams of programs, which outlast a lost connection."""
