"""The pure cores of the actors: an event in, effects out. No socket, thread, clock or file."""
