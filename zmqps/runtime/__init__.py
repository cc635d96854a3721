"""The shell around the cores: sockets, threads, processes and files."""
