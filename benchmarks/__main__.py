"""Run every benchmark, one after another."""

from __future__ import annotations

from benchmarks import latency, million, pruning, scale, schedules, tasks, throughput, vocabulary

if __name__ == "__main__":
    for benchmark in (throughput, tasks, latency, scale, schedules, million, pruning, vocabulary):
        benchmark.main()
