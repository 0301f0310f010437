"""OpenAI's REST API, and the events and the rendering beside it that the page uses."""
