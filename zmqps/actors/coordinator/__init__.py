"""The coordinator: who is in the cluster, who owns what, when to train, evaluate, save, end."""
