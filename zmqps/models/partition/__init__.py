"""One model cut over several processes: the cut, its plan, and what each process computes."""
