"""Files over HTTP: the dialects of several APIs, OpenAI's first; and the routes that take no recording."""
