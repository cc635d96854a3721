"""The agent: a vertex of the graph; it mixes its neighbours' estimates and takes its own step."""
