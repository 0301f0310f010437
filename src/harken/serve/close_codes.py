"""Codes with which a WebSocket is closed (RFC 6455, section 7.4.1, and the registry of IANA)."""

NORMAL = 1000
ABNORMAL = 1006
POLICY_VIOLATION = 1008
TOO_BIG = 1009
UNFORESEEN = 1011
RESTART = 1012
TRY_LATER = 1013
