"""The work of the server: jobs for the engines of the models, the models, and the room that there is for more."""
