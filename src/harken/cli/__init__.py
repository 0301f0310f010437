"""The command line, on top of `harken.api`; each command is a module that is imported when it runs."""
