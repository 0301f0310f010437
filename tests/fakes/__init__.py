"""Fake models, drafts, live sessions and detectors, each with a known output and a known cost."""
