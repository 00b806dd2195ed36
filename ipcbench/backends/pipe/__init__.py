"""Transport over Unix sockets, standard library only."""
