"""The server: files and live speech for clients of OpenAI's audio API, browsers, Home Assistant and own programs."""
