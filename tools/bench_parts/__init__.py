"""The benchmarks: which figures there are, and where each is measured.

A part is a function without arguments. It returns one figure as a dict, or several as a dict from
name to figure:

    figure   float, the measured value
    unit     str, "x" for a ratio
    target   float, what the figure is held against
    better   "higher" (the default) or "lower"
    how      str, how it was measured
    notes    list of str, optional: what else was seen

Each part runs in a process of its own, with one BLAS thread; what it prints is shown.
"""

PARTS = {
    "adagrad_vs_numpy": "tools.bench_parts.adagrad:adagrad_vs_numpy",
    "conv_step_vs_torch": "tools.bench_parts.conv_step:conv_step_vs_torch",
    "exchange_vs_echo": "tools.bench_parts.exchange:exchange_vs_echo",
    "curve_cost": "tools.bench_parts.curve_cost:curve_cost",
    "replicas_2_vs_loops": "tools.bench_parts.replicas:replicas_2_vs_loops",
    "logging_share": "tools.bench_parts.logging_share:logging_share",
    "shard_memory_ratio": "tools.bench_parts.memory:shard_memory_ratio",
    "fashion_accuracy": "tools.bench_parts.accuracy:fashion_accuracy",
    "demo_accuracy": "tools.bench_parts.accuracy:demo_accuracy",
    "trace_records_per_s": "tools.bench_parts.trace:trace",
    "consensus_vs_loop": "tools.bench_parts.consensus:consensus_vs_loop",
    "copies_2_vs_1": "tools.bench_parts.copies:copies_2_vs_1",
    "partitions_2_vs_1": "tools.bench_parts.partitions:partitions_2_vs_1",
    "partitions_predicted": "tools.bench_parts.partitions:partitions_predicted",
    "sandblaster_stopped": "tools.bench_parts.sandblaster:sandblaster_stopped",
    "sandblaster_handing_out": "tools.bench_parts.sandblaster:sandblaster_handing_out",
    "sandblaster_balance": "tools.bench_parts.sandblaster:sandblaster_balance",
    "sandblaster_coordinator": "tools.bench_parts.sandblaster:sandblaster_coordinator",
    "sandblaster_bytes": "tools.bench_parts.sandblaster:sandblaster_bytes",
    "sandblaster_vs_scipy": "tools.bench_parts.sandblaster_scipy:sandblaster_vs_scipy",
    "round_cost": "tools.bench_parts.rounds:round_cost",
}
